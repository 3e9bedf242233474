"""Rules for the fields of a configuration, declared with each field and checked when a section is made.

>>> from dataclasses import dataclass
>>> from typing import Literal
>>> @dataclass(frozen=True)
... class Sampling(Section, name="sampling"):
...     rate: PositiveFloat = 0.5
...     order: Literal["random", "sorted"] = "random"
>>> Sampling(rate=0.0)
Traceback (most recent call last):
    ...
gmmae.config.rules.ConfigError: sampling.rate must be positive; got 0.0
"""

import dataclasses
from functools import cache
from typing import Annotated, Any, ClassVar, get_type_hints

from gmmae.system.annotations import MISFITS, Rule, fitted, words_for
from gmmae.system.errors import InputError


class ConfigError(InputError):
    """A configuration value that breaks its rule."""


def require(holds: bool, key: str, rule: str, value: object) -> None:
    """Raises ConfigError unless the rule holds."""
    if not holds:
        raise ConfigError(f"{key} must be {rule}; got {'none' if value is None else repr(value)}")


def checked_value(key: str, value: object, kind: object) -> Any:  # noqa: ANN401 of the annotation's type
    """A value as its annotation has it; raises ConfigError, which calls it `key`."""
    try:
        return fitted(value, kind)
    except MISFITS:
        return require(False, key, words_for(value, kind), value)


def at_least(least: int) -> Rule:
    """A lower bound, allowed."""
    return Rule(f"at least {least}", lambda value: value >= least)


def between(least: float, most: float) -> Rule:
    """Two bounds, both allowed."""
    return Rule(f"{least} to {most}", lambda value: least <= value <= most)


def increasing(least: int, most: int) -> Rule:
    """Two counts, fewest and most."""
    return Rule(f"two counts, {least} ≤ fewest ≤ most ≤ {most}", lambda counts: least <= counts[0] <= counts[1] <= most)


def distinct(each: Rule) -> Rule:
    """One or more different numbers that keep a rule."""
    return Rule(
        f"one or more different numbers of {each.words}",
        lambda values: 0 < len(values) == len(set(values)) and all(map(each.holds, values)),
    )


PositiveInt = Annotated[int, at_least(1)]
PositiveInts = Annotated[
    tuple[int, ...], Rule("one or more positive numbers", lambda values: bool(values) and min(values) >= 1)
]
NonNegativeInt = Annotated[int, at_least(0)]
PositiveFloat = Annotated[float, Rule("positive", lambda value: value > 0)]
NonNegativeFloat = Annotated[float, at_least(0)]
SEED = between(0, 2**32 - 1)
"""What NumPy, scikit-learn and JAX take alike."""
Seed = Annotated[int, SEED]
Text = Annotated[str, Rule("not empty", bool)]
Share = Annotated[float, Rule("at least 0 and below 1", lambda value: 0 <= value < 1)]


MAY_CHANGE_ON_RESUME = "resumable"
"""Marks what does not change what an epoch computes."""

FINGERPRINTED = "fingerprinted"
"""Marks the place of data or parameters, which is not compared: the fingerprint of a run stands for it."""

PATH = "path"
"""Marks what may be a path. Relative ones are recorded as absolute ones."""

INLINE = "inline"
"""Marks a field whose own fields stand in its place."""


@cache
def fields_of(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a dataclass, with annotations that are text evaluated."""
    hints = get_type_hints(kind, include_extras=True)
    for item in dataclasses.fields(kind):
        item.type = hints[item.name]
    return dataclasses.fields(kind)


def marked(item: dataclasses.Field[Any], mark: str) -> bool:
    """Whether a field's annotation has a mark: `Annotated[int, PATH]`."""
    return mark in getattr(item.type, "__metadata__", ())


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a configuration, or several: the rules in its fields' annotations hold of every instance.

    Files and messages call None `none`. A subclass names its section: `class StopConfig(Section, name="stop")`. The top of a
    file has no name.
    """

    section: ClassVar[str] = ""

    def __init_subclass__(cls, name: str = "") -> None:
        cls.section = f"{name}." if name else cls.section

    @classmethod
    def key(cls, name: str) -> str:
        """A field's name."""
        return cls.section + name

    def __post_init__(self) -> None:
        for item in fields_of(type(self)):
            object.__setattr__(self, item.name, checked_value(self.key(item.name), getattr(self, item.name), item.type))
