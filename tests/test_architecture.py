"""The layering of the package, read off its imports: lower layers know nothing of higher ones."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "gmmae"
MODULES = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
FOUNDATION = ["config", "records", "mixture", "losses", "schedules", "stopping", "clock"]
FOUNDATION += ["scaling", "fits", "efficiency", "tables", "locks", "report.folders"]
TOP = [
    f"gmmae.{name}" for name in ("loop", "cli", "cell", "distributed", "pictures", "sweep", "report.arm_figures", "report.page")
]
PROGRAMS = {"gmmae.cli", "gmmae.cell"}


def imports(name):
    """Every module that a module imports, functions' imports too, `from package import module` as the module."""
    found = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            source = node.module or ""
            members = {f"{source}.{alias.name}" for alias in node.names}
            found |= {member if member in MODULES else source for member in members}
    return found


def own(name):
    return {target for target in imports(name) if target.split(".")[0] == "gmmae"}


def importers(package):
    return {name for name in MODULES if package in {target.split(".")[0] for target in imports(name)}}


def within(name, package):
    return name == package or name.startswith(package + ".")


def test_the_reading_finds_what_is_there():
    assert {"gmmae.mixture", "gmmae.models.encoder"} <= own("gmmae.models.autoencoder")
    assert "gmmae.figures.canvas" in own("gmmae.figures.curves")  # from gmmae.figures import canvas
    assert "gmmae.loop" in own("gmmae.cli")  # inside a function


@pytest.mark.parametrize("name", [f"gmmae.{name}" for name in FOUNDATION if f"gmmae.{name}" in MODULES])
def test_the_foundation_imports_nothing_of_the_package_but_errors(name):
    assert own(name) <= {"gmmae.errors"}


def test_data_and_models_meet_in_the_workload_only():
    data, models = ({name for name in MODULES if within(name, f"gmmae.{package}")} for package in ("data", "models"))
    assert data
    assert models
    for name in models:
        assert not own(name) & data, name
    for name in data:
        assert not own(name) & models, name
    assert [name for name in MODULES if own(name) & data and own(name) & models] == ["gmmae.workload"]


def identifiers(name):
    """Names, attributes and keywords in the code; comments and docstrings may say what they like."""
    for node in ast.walk(TREES[name]):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.keyword(arg=word) | ast.alias(name=word):
                yield word


def test_only_parallel_maps_over_devices_and_names_the_axis():
    words = {"pmap", "shard_map", "axis_name", "AXIS"}
    found = {name for name in MODULES if words & set(identifiers(name))}
    assert found == {"gmmae.parallel"}


def test_only_distributed_starts_and_stops_jax_among_processes():
    calls = {"initialize", "shutdown"}
    found = {
        name
        for name in MODULES
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Attribute) and node.attr in calls and ast.unparse(node.value).endswith("distributed")
    }
    assert found == {"gmmae.distributed"}


def test_the_link_between_processes_knows_no_jax():
    reached, queue = set(), ["gmmae.peers"]
    while queue:
        reached.add(current := queue.pop())
        queue += [target for target in own(current) if target in MODULES and target not in reached]
    assert not {target.split(".")[0] for name in reached for target in imports(name)} & {"jax", "numpy", "flax"}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("matplotlib", ["gmmae.figures"]),
        ("scipy", ["gmmae.figures", "gmmae.rendering", "gmmae.data", "gmmae.efficiency", "gmmae.fits"]),
        ("SimpleITK", ["gmmae.figures", "gmmae.data"]),
        ("tensorboardX", ["gmmae.writers"]),
        ("orbax", ["gmmae.checkpoint"]),
        ("submitit", ["gmmae.cluster_host", "gmmae.cluster_task"]),
        ("tyro", ["gmmae.arguments"]),
        ("rich", ["gmmae.terminal", "gmmae.data", "gmmae.sweep_display", "gmmae.cell"]),
    ],
)
def test_heavy_packages_stay_in_their_places(package, allowed):
    assert {name for name in importers(package) if not any(within(name, place) for place in allowed)} == set()


def test_nothing_imports_upward():
    users = {name: own(name) & set(TOP) for name in MODULES if own(name) & set(TOP)}
    assert set(users) <= set(TOP), users
    assert {name for name in MODULES if own(name) & PROGRAMS} <= PROGRAMS
    assert "gmmae.arguments" not in set().union(*(own(name) for name in MODULES if name not in TOP))


def test_imports_have_no_cycle():
    done: set[str] = set()

    def visit(name, path):
        assert name not in path, " → ".join([*path, name])
        if name in done or name not in MODULES:
            return
        for target in own(name):
            visit(target, [*path, name])
        done.add(name)

    for name in MODULES:
        visit(name, [])


def test_the_step_and_what_is_below_load_in_an_environment_without_the_rest():
    heavy = {"submitit", "tyro", "rich", "matplotlib", "SimpleITK", "orbax", "tensorboardX"}
    # SciPy is allowed only because JAX loads parts of it.
    program = (
        "import sys, jax, flax.linen, optax\n"
        "before = {m.split('.')[0] for m in sys.modules}\n"
        "import gmmae.step, gmmae.models.autoencoder, gmmae.losses, gmmae.schedules, gmmae.data.batches\n"
        "print(*({m.split('.')[0] for m in sys.modules} - before))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT.parent, check=True)
    assert not set(result.stdout.split()) & (heavy | {"scipy"})
    for name in ("gmmae.step", "gmmae.models.autoencoder", "gmmae.losses", "gmmae.schedules", "gmmae.data.batches"):
        reached, queue = set(), [name]
        while queue:
            reached.add(current := queue.pop())
            queue += [target for target in own(current) if target in MODULES and target not in reached]
        assert not {target.split(".")[0] for current in reached for target in imports(current)} & heavy


@pytest.mark.parametrize("name", MODULES)
def test_a_module_holds_one_concept(name):
    assert "util" not in name
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= 400
    if not name.endswith("__init__"):
        assert ast.get_docstring(TREES[name])
