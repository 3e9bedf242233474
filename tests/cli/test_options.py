"""Every option of every command has a rule, and what breaks it is one line that names the option."""

import math
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest

from gmmae.cli import arguments, options
from gmmae.config.toml import to_toml
from tests.commands import refusal
from tests.small import small

CLASSES = sorted(
    {
        each
        for each in (*vars(options).values(), *vars(arguments).values())
        if getattr(each, "__name__", "").endswith("Arguments")
    },
    key=lambda each: each.__name__,
)


def numbers(owner):
    """Yields the numeric fields of a command's arguments, with how many values they take."""
    for name, hint in get_type_hints(owner).items():
        kinds = get_args(hint) if get_origin(hint) in (tuple, UnionType) else (hint,)
        for kind in {int, float} & set(kinds):
            yield owner.__name__, name, kind, 2 if kinds == (kind, kind) else 1


NUMBERS = [number for owner in CLASSES for number in numbers(owner)]
COMMANDS = {
    "SynthArguments": ("data", "synth", "OUT"),
    "LidcArguments": ("data", "lidc", "nowhere", "--out", "OUT"),
    "InsertArguments": ("insert", "nowhere", "nowhere", "--out", "OUT"),
    "ClassifyArguments": ("classify", "RUN", "--out", "OUT"),
    "JudgeArguments": ("judge", "nowhere", "elsewhere", "--out", "OUT"),
    "GenerateArguments": ("generate", "nowhere", "--out", "OUT"),
    "PlanArguments": ("plan", "--workdir", "OUT"),
    "CurvesArguments": ("plan", "--curves", "nowhere.csv", "elsewhere.csv", "--workdir", "OUT"),
    "MeasureClusterArguments": ("measure-cluster", "--out", "OUT"),
    "DescribeArguments": ("describe", "RUN", "nowhere.mha", "--out", "OUT"),
}
HOSTILE = {int: ("-1", "99999999999999999999999", "1e9", "nan"), float: ("-1", "inf", "-inf", "nan", "1e300")}


@pytest.fixture(scope="module")
def described_run(tmp_path_factory):
    """Makes the part of a run that is read before the options are checked."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.toml").write_text(to_toml(small()))
    return folder


@pytest.mark.parametrize(("owner", "name", "kind", "values"), NUMBERS)
def test_a_hostile_number_is_one_line_that_names_the_option(owner, name, kind, values, described_run, tmp_path, capsys):
    places = {"OUT": tmp_path / "out", "RUN": described_run}
    call = [places.get(word, word) for word in COMMANDS[owner]]
    option = "--" + name.replace("_", "-")
    for value in HOSTILE[kind]:
        as_many_as_anybody_likes = name in ("devices", "scale_compute") and float(value) > 0
        if math.isfinite(float(value)) and (as_many_as_anybody_likes or name == "target"):
            continue  # a metric may have any value
        assert option in refusal(capsys, *call, option, *[value] * values), value
    assert not (tmp_path / "out").exists()
