"""The layering of the package, read off its imports: arrows point down only."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.launched import python

ROOT = Path(__file__).parent.parent / "gmmae"
MODULES = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
PACKAGES = sorted({path.parent for path in ROOT.rglob("*.py")} - {ROOT})
FLOORS = [
    {"system"},
    {"config"},
    {"models", "scaling", "plotting", "data"},
    {"multihost", "workloads"},
    {"training"},
    {"sweep", "generation", "export"},
    {"planner", "classification"},
    {"cli"},
]
"""The packages from the lowest floor to the highest; those of one floor know nothing of each other."""
FLOOR = {package: number for number, packages in enumerate(FLOORS) for package in packages}
STEP = (
    "gmmae.training.step",
    "gmmae.models.autoencoder",
    "gmmae.models.losses",
    "gmmae.scaling.schedules",
    "gmmae.scaling.batches",
)
"""What a program that has its own loop needs."""


def imports(name):
    """Every module that a module imports, functions' imports too, `from package import module` as the module."""
    targets = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            source = node.module or ""
            members = {f"{source}.{alias.name}" for alias in node.names}
            targets |= {member if member in MODULES else source for member in members}
    return targets


def own(name):
    return {target for target in imports(name) if target.split(".")[0] == "gmmae"}


def package_of(name):
    return (*name.split("."), "")[1]


def importers(package):
    return {name for name in MODULES if package in {target.split(".")[0] for target in imports(name)}}


def test_every_module_lies_in_a_package_that_has_a_floor_and_says_what_it_is_for():
    assert {name for name in MODULES if name.count(".") == 1} == {"gmmae.__init__"}
    assert {package.relative_to(ROOT).parts[0] for package in PACKAGES} == set(FLOOR)
    for package in PACKAGES:
        text = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
        assert text, package
        assert text.count("\n") == 0, f"{package} is said in one sentence"


@pytest.mark.parametrize("name", [name for name in MODULES if name != "gmmae.__init__"])
def test_arrows_point_down(name):
    here = package_of(name)
    for target in own(name):
        there = package_of(target)
        assert there in (here, "") or FLOOR[there] < FLOOR[here], f"{name} → {target}"


def identifiers(name):
    """Names, attributes and keywords in the code; comments and docstrings may say what they like."""
    for node in ast.walk(TREES[name]):
        match node:
            case (
                ast.Name(id=word)
                | ast.Attribute(attr=word)
                | ast.keyword(arg=word)
                | ast.alias(name=word)
                | ast.FunctionDef(name=word)
            ):
                yield word


def attributes(name):
    """Attributes with what they are of, as they stand in the code."""
    return {ast.unparse(node) for node in ast.walk(TREES[name]) if isinstance(node, ast.Attribute)}


def test_only_parallel_maps_over_devices_and_only_the_means_name_their_axis():
    words = {"pmap", "shard_map", "axis_name"}
    assert {name for name in MODULES if words & set(identifiers(name))} == {"gmmae.training.parallel"}
    found = {name for name in MODULES if "AXIS" in set(identifiers(name))}
    assert found == {f"gmmae.training.{name}" for name in ("parallel", "step", "exact")}


def test_only_distributed_starts_and_stops_jax_among_processes():
    calls = ("distributed.initialize", "distributed.shutdown")
    assert {name for name in MODULES if any(call.endswith(calls) for call in attributes(name))} == {
        "gmmae.multihost.distributed"
    }


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ({"ImageFileReader", "ReadImage"}, {"scan", "dicom", "writing"}),  # what was just written is read back
        ({"memmap", "fromfile"}, {"arrays"}),
        ({"as_stored", "open_array"}, {"extract", "scan", "arrays"}),
    ],
    ids=["ITK's reader", "NumPy's", "ours"],
)
def test_voxels_are_read_in_one_way(words, places):
    """A second reader would have fewer checks."""
    named = {name for name in MODULES if words & set(identifiers(name))}
    assert {name.rpartition(".")[2] for name in named} == places


def test_only_checked_voxels_of_a_scan_are_used():
    """`Scan.voxels` are as they are in the file; `scan.region` checks them."""
    taken = {name for name in MODULES if attributes(name) & {"scan.voxels", "mask.voxels", "stored.voxels"}}
    # Others use their shape, whether they are those of another scan, and what `read_scan` has checked.
    others = {"gmmae.data.native_volumes", "gmmae.data.extraction.extract", "gmmae.generation.insertion.insert"}
    assert taken == {"gmmae.data.extraction.scan", *others}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("matplotlib", ["gmmae.plotting", "gmmae.generation.judging.figures"]),
        (
            "scipy",
            [
                *("gmmae.plotting", "gmmae.data", "gmmae.scaling", "gmmae.planner", "gmmae.sweep.report", "gmmae.generation"),
                "gmmae.classification",
            ],
        ),
        ("sklearn", ["gmmae.generation", "gmmae.classification", "gmmae.cli.predict"]),
        ("SimpleITK", ["gmmae.plotting", "gmmae.data", "gmmae.generation.insertion"]),
        ("tensorboardX", ["gmmae.system.tensorboardx"]),
        ("orbax", ["gmmae.training.checkpoint"]),
        ("submitit", ["gmmae.sweep.slurm"]),
        ("tyro", ["gmmae.cli.arguments"]),
        ("rich", ["gmmae.training.terminal", "gmmae.data", "gmmae.sweep.display"]),
    ],
)
def test_heavy_packages_stay_in_their_places(package, allowed):
    assert importers(package)
    places = tuple(f"{place}." for place in allowed)
    assert {name for name in importers(package) if not f"{name}.".startswith(places)} == set()


def test_imports_start_no_device():
    """Commands import JAX before they set a run's devices and threads, which JAX reads when it makes its first array."""
    modules = ("gmmae.cli.plan", "gmmae.training.trained", "gmmae.workloads.nodules", "gmmae.workloads.segmentation")
    program = f"import {', '.join(modules)}\nfrom jax._src import xla_bridge\nassert not xla_bridge.backends_are_initialized()"
    assert python("-c", program).stderr == ""


def test_imports_have_no_cycle():
    TopologicalSorter({name: own(name) for name in MODULES}).prepare()  # its CycleError has the path


def test_the_step_and_what_is_below_load_in_an_environment_without_the_rest():
    heavy = {"submitit", "tyro", "rich", "matplotlib", "SimpleITK", "orbax", "tensorboardX"}
    # SciPy is allowed only because JAX loads parts of it.
    program = (
        "import sys, jax, flax.linen, optax\n"
        "before = {m.split('.')[0] for m in sys.modules}\n"
        f"import {', '.join(STEP)}\n"
        "print(*({m.split('.')[0] for m in sys.modules} - before))"
    )
    loaded = set(python("-c", program).stdout.split())
    assert "gmmae" in loaded
    assert not loaded & (heavy | {"scipy"})
    reached = [*STEP]
    for name in reached:  # which grows by what each module needs
        assert not {target.split(".")[0] for target in imports(name)} & heavy
        reached += [target for target in own(name) if target in MODULES and target not in reached]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_holds_one_concept(name):
    assert "util" not in name
    assert len(MODULES[name].read_text().splitlines()) <= 600
    assert ast.get_docstring(TREES[name])
