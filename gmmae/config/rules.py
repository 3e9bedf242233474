"""Rules for the fields of a configuration: each one is declared with its field, and checked when the section is made.

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
import math
from collections.abc import Callable, Iterator
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

from gmmae.system.errors import InputError


class ConfigError(InputError):
    """A configuration value that breaks its rule; the message names the key, the rule and the value."""


def require(holds: bool, key: str, rule: str, value: object) -> None:
    """Raises ConfigError unless the rule holds."""
    if not holds:
        raise ConfigError(f"{key} must be {rule}; got {'none' if value is None else repr(value)}")


class Rule(NamedTuple):
    """What a value must be, in words that go on after "must be", and whether one is."""

    words: str
    holds: Callable[[Any], bool]


def at_least(least: int) -> Rule:
    """A finite number that is not below another."""
    return Rule(f"at least {least}", lambda value: math.isfinite(value) and value >= least)


def between(least: float, most: float) -> Rule:
    """A number that is not below one and not above another."""
    return Rule(f"{least} to {most}", lambda value: least <= value <= most)


def increasing(least: int, most: int) -> Rule:
    """Two counts, the fewest and the most, neither below one number nor above another."""

    def holds(counts: tuple[int, int]) -> bool:
        return least <= counts[0] <= counts[1] <= most

    return Rule(f"two counts, {least} ≤ fewest ≤ most ≤ {most}", holds)


def distinct(each: Rule) -> Rule:
    """A list of different numbers, not empty, for each of which a rule holds."""

    def holds(values: tuple[Any, ...]) -> bool:
        return bool(values) and len(set(values)) == len(values) and all(map(each.holds, values))

    return Rule(f"one or more different numbers of {each.words}", holds)


PositiveInt = Annotated[int, at_least(1)]
NonNegativeInt = Annotated[int, at_least(0)]
PositiveFloat = Annotated[float, Rule("positive", lambda value: math.isfinite(value) and value > 0)]
NonNegativeFloat = Annotated[float, at_least(0)]
SEED = between(0, 2**32 - 1)
"""What NumPy, scikit-learn and JAX take alike."""
Seed = Annotated[int, SEED]
Text = Annotated[str, Rule("not empty", bool)]
Share = Annotated[float, Rule("at least 0 and below 1", lambda value: 0 <= value < 1)]


MAY_CHANGE_ON_RESUME = "resumable"
"""Marks a field, or a section, that may change when a run is resumed: it does not change what an epoch computes."""

FINGERPRINTED = "fingerprinted"
"""Marks a field that says where data or parameters are. The fingerprint of a run stands for it, so it is not compared."""

PATH = "path"
"""Marks a field that may be a path. Relative ones are recorded as absolute ones."""

INLINE = "inline"
"""Marks a field whose own fields stand in its place, in files and on the command line."""


def alternatives(kind: object) -> Iterator[tuple[object, tuple[Rule, ...]]]:
    """Yields the types that an annotation allows, each with its rules.

    >>> [kind for kind, _ in alternatives(PositiveInt | Literal["all"] | None)]
    [<class 'int'>, typing.Literal['all'], <class 'NoneType'>]
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        rules = tuple(mark for mark in parts[1:] if isinstance(mark, Rule))
        yield from ((inner, more + rules) for inner, more in alternatives(parts[0]))
    elif origin in (Union, UnionType):
        for part in parts:
            yield from alternatives(part)
    else:
        yield kind, ()


def _broken_rule(option: object, rules: tuple[Rule, ...], value: object, *, alone: bool) -> str | None:
    """Returns the words of the rule that keeps a value from one type of an annotation, or None where it fits.

    Args:
      option: the type.
      rules: of this type.
      value: the value.
      alone: whether the annotation allows no other type.
    """
    if option is NoneType:
        return None if value is None else "none"
    if get_origin(option) is Literal:
        return None if value in get_args(option) else "one of " * alone + ", ".join(map(str, get_args(option)))
    has_type = alone or (isinstance(value, Real) if option in (int, float) else value is not None)
    broken = [rule.words for rule in rules if not has_type or not rule.holds(value)]
    return None if has_type and not broken else " and ".join(broken)


def marked(item: dataclasses.Field[Any], mark: str) -> bool:
    """Whether a field's annotation has a mark: `Annotated[int, MAY_CHANGE_ON_RESUME]`."""
    return mark in getattr(item.type, "__metadata__", ())


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a configuration, or several: the rules in its fields' annotations hold of every instance.

    A `Literal` allows its values, and `Annotated[type, rule]` those that keep its `Rule`. Files and messages call None `none`.
    A subclass names its section in the messages: `class StopConfig(Section, name="stop")`. The top of a file has no name.
    """

    section: ClassVar[str] = ""

    def __init_subclass__(cls, name: str = "") -> None:
        cls.section = f"{name}." if name else cls.section

    @classmethod
    def key(cls, name: str) -> str:
        """What a field is called in messages."""
        return cls.section + name

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, options = getattr(self, item.name), list(alternatives(item.type))
            broken = [_broken_rule(option, rules, value, alone=len(options) == 1) for option, rules in options]
            require(None in broken, self.key(item.name), " or ".join(dict.fromkeys(filter(None, reversed(broken)))), value)


@dataclasses.dataclass(frozen=True)
class Options(Section):
    """The arguments of a command: as a section, but a field is called as on the command line.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Drawing(Options):
    ...     count: PositiveInt = 10
    >>> Drawing(count=0)
    Traceback (most recent call last):
        ...
    gmmae.config.rules.ConfigError: --count must be at least 1; got 0
    """

    @classmethod
    def key(cls, name: str) -> str:
        """Returns a field's option."""
        return "--" + name.replace("_", "-")
