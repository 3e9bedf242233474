"""Every file, key, module and function that the documents name in backticks exists; links lead somewhere."""

import re
from pathlib import Path

from gmmae.config.schema import flatten
from gmmae.sweep.grid import SweepConfig
from tests.documents.reading import ROOT, backticks, links, none_of
from tests.documents.test_reference import KEYS as RUN_KEYS

SOURCES = [path for folder in ("gmmae", "experiments", "benchmarks", "launch") for path in (ROOT / folder).rglob("*.*")]
TEXT = {path: path.read_text() for path in SOURCES if path.suffix in (".py", ".sh", ".sbatch")}

KEYS = RUN_KEYS | {key for key, _ in flatten(SweepConfig())}
"""All keys of configurations and sweeps."""

USERS = {"mine.py", "my_sweep.toml", "load.py", "model.zip", "a.nii.gz", "b.mhd", "report.html"}
USERS |= {"metrics.csv", "trainer_state.json", "training_log_*.txt"}
USERS |= {f"{name}mnist3d.npz" for name in ("adrenal", "fracture", "nodule", "organ", "synapse", "vessel")}
"""Files that a user has or names."""

GONE = {"stop.target_loss", "log.figure_nodules", "data.hu_window", "log.noise_scale", "optim.tuned_factors"}
GONE |= {"parallel.epochs_per_dispatch", "training/multi_epoch.py"}
GONE |= {"benchmarks.populations", "benchmarks.sweep_programs", "benchmarks.sweep_estimate"}
"""Keys, modules and files of earlier versions, which CHANGELOG.md names."""

OUTSIDE = re.compile(r"(jax|lax|torch|scipy|hvd|trainer|wandb|Model|model|net|Config|Workload|Devices)\.")
"""Names of libraries, and of what an example has made."""

SUFFIX = re.compile(r"\.(def|py|toml|sh|sbatch|md|txt|json|csv|png|npz|html|yaml)$")
PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?")
DOTTED = re.compile(r"[a-z_]\w*(\.\w+)*\.(\w+|\*)")


def is_there(path: str):
    """Whether the repository has a path, written from its root, from the package, or as a bare name; or writes such a file."""
    name = path.rstrip("/")
    first, inside, _ = name.partition("/")
    if any(any(folder.glob(name)) for folder in (ROOT, ROOT / "gmmae")):
        return True
    if inside and path not in GONE:  # in a folder that a command writes
        return not any((folder / first).is_dir() for folder in (ROOT, ROOT / "gmmae"))
    written = any(re.search(rf"[\"'/]{re.escape(name)}[\"'/]", text) for text in TEXT.values())
    return name in USERS | GONE or written or any(ROOT.glob(f"[!.]*/**/{name}"))


def is_known(name: str):
    """Whether a dotted name is a key, or what a module of that name has."""
    if name in KEYS | GONE or (name.endswith(".*") and any(key.startswith(name[:-1]) for key in KEYS)):
        return True
    owner, _, last = name.rpartition(".")
    if last == "*":
        return False
    place = owner.replace(".", "/")
    has = re.compile(rf"\b(def|class) {last}\b|^{last}\b|[\"']{last}[\"']", re.MULTILINE)
    for path, text in TEXT.items():
        module = f"/{path.relative_to(ROOT).with_suffix('')}".removesuffix("/__init__")
        if module.endswith(f"/{name.replace('.', '/')}") or (module.endswith(f"/{place}") and has.search(text)):
            return True
    return False


def test_files_keys_and_modules_in_backticks_exist():
    pieces, found = list(backticks()), []
    assert len(pieces) > 300
    for said in pieces:
        text = re.split(r" = |\(|\[|=", said.text)[0]
        if PATH.fullmatch(text) and ("/" in text or SUFFIX.search(text)) and not text.startswith(("runs", "/", ".", "subset")):
            found += [] if is_there(text) else [f"{said.place}: no file {text}"]
        elif DOTTED.fullmatch(text) and not OUTSIDE.match(text):
            found += [] if is_known(text) else [f"{said.place}: no key, module or function {text}"]
    none_of(found)


def anchors(page: Path):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    found = []
    for said in links():
        target, _, anchor = said.text.partition("#")
        # The template of the study is read where its page lies.
        page = ROOT / ("docs/study.md" if said.place == "experiments/study.md" else said.place)
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            found.append(f"{said.place}: {said.text}")
    none_of(found)
