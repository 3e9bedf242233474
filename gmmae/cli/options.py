"""The options of each command, parsed before anything large is imported, so help and errors come at once."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from gmmae.cli.arguments import (
    MISSING,
    Folder,
    Options,
    Positional,
    Run,
    TrainArguments,
    arg,
    data_section,
    parse,
    parse_on_run,
    parse_sweep,
    parse_train,
    parse_with_config,
)
from gmmae.config.rules import PositiveFloat, PositiveInt, Rule, Seed, Text, between, increasing
from gmmae.config.schema import DistributedConfig, Mode
from gmmae.data.settings import Cache, Crop, DataConfig
from gmmae.sweep.grid import Clusters, Counts

BATCH = between(1, 10**9)
Batches = tuple[Annotated[int, BATCH], ...]
Limits = Annotated[tuple[float, float], Rule("in order", lambda limits: limits[0] <= limits[1])]
OddWidth = Annotated[int, Rule("an odd number of 1 to 10001", lambda width: width in range(1, 10_002, 2))]
Size = Annotated[int, between(4, 512)] | Literal["auto"]
SIZES = Rule(
    f"two or more different multiples of 4, up to {2**30}",
    lambda sizes: len(set(sizes)) == len(sizes) > 1 and all(0 < size <= 2**30 and size % 4 == 0 for size in sizes),
)
Split = Literal["train", "validation", "test", "all"]
Strength = Annotated[float, between(0, 100)]


@dataclass(frozen=True)
class ReportArguments(Options):
    """Write a sweep's tables, figures and verdict, finished or not."""

    root: Folder = MISSING  # the work directory of a sweep that you trust: the Python that it names is executed
    clusters: tuple[str, ...] = ()  # TOML files, or names of those in configs/clusters, such as h100; default: the sweep's
    plan: Path | None = None  # plan.json of `gmmae plan`, shown beside the outcome; default: that of the sweep's folder


@dataclass(frozen=True)
class PlanArguments(TrainArguments):
    """Predict times to the target on clusters from measurements on one device, and recommend a strategy and its devices.

    With --curves the plan is made from the loss curves of runs of any program, without training. `gmmae plan --curves --help`
    lists the options of that.
    """

    clusters: Clusters = ("h200_nvlink",)  # TOML files, or names of those in configs/clusters, such as h100
    devices: Counts = (1, 2, 4, 8, 16, 32)  # numbers of devices to choose from
    scale_compute: PositiveFloat | None = None  # seconds on a cluster's device for one second measured; none: as its file says


@dataclass(frozen=True)
class MeasureClusterArguments(Options):
    """Time all-reduces over the devices that JAX sees, and write the cluster's file for `--clusters`.

    Several processes are started as for `gmmae train`. All of them are timed together, and process 0 writes.
    """

    out: Path = MISSING  # the TOML file to write
    force: bool = False  # replace the file if it exists
    name: Text | None = None  # name of the cluster in tables; none: its devices
    devices_per_node: PositiveInt | Literal["auto"] = "auto"  # devices of a node; auto: those of a host
    sizes: Annotated[tuple[int, ...], SIZES] = (1024, 16384, 262144, 4194304)  # bytes to reduce on each device
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


@dataclass(frozen=True)
class CurvesArguments(Options):
    """Plan from the loss curves of runs that any program made, all at one learning rate, at two batches or more."""

    # Logs of Lightning, nnU-Net, Hugging Face, Keras, W&B or TensorBoard, work directories of gmmae, or CSV files. Two or more
    # runs; the same batch twice is another seed.
    curves: tuple[Path, ...] = ()
    batches: Batches = ()  # batch of each curve, in their order; default: that of the logs
    step_column: Text | None = None  # column of the step, or of the epoch; none: its usual names
    loss_column: Text | None = None  # column or scalar of the validation loss, or of another metric; none: found by its name
    batch_column: Text | None = None  # column or scalar of the global batch; none: its usual names
    learning_rate_column: Text | None = None  # column or scalar of the learning rate; none: its usual names
    different_rates: bool = False  # plan batch and learning rate together, where each batch was trained at a rate of its own
    target: float | None = None  # value to reach; none: the hardest one that all curves pass by a margin
    mode: Mode = "min"  # whether lower (min) or higher (max) values are better
    smooth: OddWidth = 3  # each value becomes the median of this number of successive values; 1: none
    samples: Annotated[int, between(1, 10**12)] | None = None  # training samples; logs that count epochs need it; none: unknown
    batch_size: Annotated[int, BATCH] | None = None  # base batch B of strong and weak scaling; none: the smallest of the curves
    devices: Counts = (1, 2, 4, 8, 16, 32)  # numbers of devices to predict for
    # batch on one device = seconds of a training step, such as 32=0.0021 128=0.0060; default: those of logs with a clock
    step_times: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()  # TOML files, or names of those in configs/clusters, such as h100, for the all-reduce
    parameters: Annotated[int, between(1, 10**15)] | None = None  # parameters of the model; --clusters needs them
    precision: Literal["float64", "float32", "bfloat16", "float16"] = "float32"  # of the gradient
    scale_compute: PositiveFloat | None = None  # seconds on a cluster's device for one second of --step-times; none: 1
    workdir: Path = Path("runs/plan_curves")  # folder of plan_curves.json and the page; an earlier plan from curves is replaced


@dataclass(frozen=True)
class EvaluateArguments(Options):
    """Compute loss and metrics of a run's best parameters on each sample of its own data, or of other data."""

    run: Run = MISSING  # the work directory of a run that you trust: it names Python that is executed
    split: Split | Literal["auto"] = "auto"  # auto: validation, but all if the data are not the run's own
    # The CSV to write, one row for each sample. The default is evaluation.csv in RUN for the run's own validation samples.
    # Other samples, data or settings have a file of their own in RUN. The last printed line names it. Only an earlier
    # evaluation is replaced.
    out: Path | None = None


@dataclass(frozen=True)
class DescribeArguments(Options):
    """Describe each volume as a mixture, with a trained run. Volumes are cut like the run's data, or as the options say."""

    run: Run = MISSING  # the work directory of a run that you trust: it names Python that is executed
    # volumes with a nodule in the middle; or a folder with a nodules.csv; or one shaped like LUNA16, of which each nodule is
    # described; or an .npz of volumes. Without any, the data of RUN, or those of --data.source and --data.root.
    files: Annotated[tuple[Path, ...], Positional, arg(metavar="FILE")] = ()
    out: Path = MISSING  # the folder to write; new or empty, or an earlier description, which is replaced
    refine: Annotated[int, between(0, 100_000)] = 0  # steps of Adam that refine each mixture; more than 120 gain little


@dataclass(frozen=True)
class ClassifyArguments(Options):
    """Classify volumes by the mixtures, latent vectors and coarse voxels of trained runs, and judge this on the test set.

    The test set is the data's own, as MedMNIST has one, or else the run's validation set. Published results of MedMNIST's data
    stand beside it.
    """

    run: Run = MISSING  # the work directory of a run that you trust: it names Python that is executed
    # further runs that differ from it in their seed only; results are means over all runs
    runs: Annotated[tuple[Path, ...], Positional, arg(metavar="RUN")] = ()
    label_column: Text | None = None  # column of the CSV with the labels; none: the categories
    label_at_most: float | None = None  # labels up to this number are one of two classes; none: labels are text
    label_at_least: float | None = None  # labels from this number on are the other class; those between are left out
    seeds: Annotated[int, between(1, 1000)] = 5  # classifiers of each run, each with another random seed
    blocks: Annotated[int, between(1, 64)] = 4  # coarse voxels along each axis, means of the volume's
    out: Path | None = None  # folder to write, and earlier results are replaced; none: classification in RUN


@dataclass(frozen=True)
class PredictArguments(Options):
    """Apply the classifiers that `gmmae classify RUN` kept to other nodules, cut like the run's.

    No label is needed. Where there are labels, those of nodules and patients that the run was not trained on are a test.
    """

    run: Run = MISSING  # the work directory of a run that you trust: it names Python that is executed
    folder: Folder = MISSING  # the nodules: a folder with a CSV, one shaped like LUNA16, or an .npz of volumes
    label_column: Text | None = None  # column of the CSV with the labels, if there are any; none: as classified
    out: Path | None = None  # folder to write, and earlier results are replaced; none: predicted_FOLDER in RUN


@dataclass(frozen=True)
class ExportArguments(Options):
    """Write a run's best parameters and functions to one file that JAX loads without gmmae."""

    run: Run = MISSING  # the work directory of a run that you trust: it names Python that is executed
    out: Path = MISSING  # the file to write, a ZIP archive; new, or an earlier export, which is replaced


@dataclass(frozen=True)
class GenerateArguments(Options):
    """Make new nodules with a trained model: cubes with masks, and a CSV with the origin of each."""

    run: Run = MISSING  # a run that you trust (it names Python that is executed), with a lattice decoder (nodules_generate)
    out: Path = MISSING  # the folder to write; new or empty
    count: Annotated[int, between(1, 100_000)] = 100  # nodules to make
    category: str | None = None  # category of all nodules; none: as in the training set
    diameter_mm: Limits | None = None  # smallest and largest diameter, mm; none: as in the training set
    malignancy: Limits | None = None  # lowest and highest score (column malignancy) of the nodules that shapes begin with
    seed: Seed = 0  # random seed of the nodules
    size: Size = "auto"  # voxels along the longest axis of a cube; auto: as in the training set
    bandwidth: Strength = 1.3  # noise of the prior, in standard deviations within a category; 0.6 for classifiers
    texture: Strength = 0.5  # strength of the texture that the mixtures leave out; 0: no grain either
    insert_into: Path | None = None  # .mhd scans shaped like LUNA16's; copies with the nodules go to scans/ in the folder


@dataclass(frozen=True)
class InsertArguments(Options):
    """Put nodules, generated or real, into scans shaped like LUNA16's, with annotations, masks and boxes."""

    nodules: Folder = MISSING  # cubes with masks and a nodules.csv
    # .mhd scans, in subset*/ or directly; they are left as they are
    scans: Annotated[Path, Positional, arg(metavar="SCANS")] = MISSING
    out: Path = MISSING  # the folder to write; empty or new
    per_scan: Annotated[tuple[int, int], increasing(1, 1000)] = (1, 3)  # the fewest and the most nodules in a scan
    seed: Seed = 0  # random seed of the places
    crop: Crop = "1.25x"  # side length of the cubes, as data.crop; 1.25x is that of nodules_generate
    size: Annotated[int, between(4, 512)] = 32  # voxels along each axis of a cube
    cache: Cache = "auto"  # folder of extracted cubes; auto: gmmae in the user's cache folder


@dataclass(frozen=True)
class JudgeArguments(Options):
    """Judge generated nodules by real ones: similarity, variety and novelty."""

    # real nodules that the generator was not fitted to, in the form of data.source
    real: Annotated[Path, Positional, arg(metavar="REAL")] = MISSING
    # generated nodules: a folder of cubes, as `gmmae generate` writes it
    generated: Annotated[Path, Positional, arg(metavar="GENERATED")] = MISSING
    train: Path | None = None  # real nodules that the generator was fitted to, in the form of REAL; for novelty
    split: Literal["train", "validation", "all"] = "all"  # part of REAL to compare with; the rest is what was fitted
    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used, such as RUN/config.toml
    out: Path = Path("judgement")  # folder for the page; new, empty, or with an earlier judgement, which is replaced
    # nodules of each set to compare; all: the number in the smallest set
    count: Annotated[int, between(1, 100_000)] | Literal["all"] = "all"
    seed: Seed = 0  # random seed
    data: DataConfig = field(default_factory=lambda: DataConfig(source="cubes", padding="replicate"))


@dataclass(frozen=True)
class PrepareArguments(Options):
    """Cut the nodules out of their scans, once, into the cache."""

    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used
    out: Path | None = None  # folder for copies of summary.json and contact_sheet.png; new, empty, or with earlier ones
    refresh: bool = False  # delete these data from the cache, and extract them again
    data: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True)
class InspectArguments(Options):
    """Show the properties of one nodule, and its central slices."""

    # the nodule's name, a part that only it has, or its number from 0
    which: Annotated[str, Positional, arg(metavar="NODULE")] = MISSING
    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used
    out: Path = Path("nodule.png")  # the picture to write; new, or an earlier one, which is replaced
    data: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True)
class LidcArguments(Options):
    """Cut the nodules of LIDC-IDRI out of its DICOM series, by its readers' outlines, into a folder of cubes with masks."""

    root: Folder = MISSING  # folder with the DICOM series and the readers' XML files, in any folders below it
    out: Path = MISSING  # the folder to write; new or empty, or an earlier result, which is replaced
    min_readers: Annotated[int, between(1, 100)] = 3  # fewest readers who outlined a nodule; LUNA16's list has 3
    agreement: Annotated[float, between(0, 1)] = 0.5  # share of these readers who have a voxel inside; 0: any reader
    margin_mm: Annotated[float, between(0, 1000)] = 15.0  # width of the margin around a nodule; it ends where the scan ends
    annotations: Path | None = None  # LUNA16's annotations.csv: centres and diameters of the nodules that it lists


@dataclass(frozen=True)
class SynthArguments(Options):
    """Write a folder of synthetic scans in LUNA16's shape."""

    root: Folder = MISSING  # the folder to write; empty or new
    scans: Annotated[int, between(1, 100_000)] = 10  # scans to write
    nodules: Annotated[tuple[int, int], increasing(0, 1000)] = (0, 3)  # the fewest and the most nodules in a scan
    seed: Seed = 0  # random seed of the scans
    slices: Annotated[int, between(1, 4096)] = 120  # along z, 2.5 mm apart
    pixels: Annotated[int, between(1, 4096)] = 256  # along x and y each; together they are 360 mm wide
    compressed: bool = False  # write .zraw rather than .raw


Parser = Callable[[Sequence[str], str], tuple[Any, ...]]


def _own(kind: Callable[..., Any]) -> Parser:
    return lambda arguments, prog: (parse(kind(), arguments, prog),)


def _on_data(kind: Callable[..., Any]) -> Parser:
    return lambda arguments, prog: (parse(kind(data=data_section(arguments, kind().data)), arguments, prog),)


PARSERS: Mapping[str, Parser] = {
    "train": lambda arguments, prog: (*parse_train(arguments, prog), shlex.join([*prog.split(), *arguments])),
    "sweep": parse_sweep,
    "report": _own(ReportArguments),
    "plan": partial(parse_with_config, PlanArguments),
    "measure-cluster": _own(MeasureClusterArguments),
    "plan_curves": _own(CurvesArguments),
    "evaluate": partial(parse_on_run, EvaluateArguments),
    "describe": partial(parse_on_run, DescribeArguments),
    "classify": partial(parse_on_run, ClassifyArguments),
    "predict": partial(parse_on_run, PredictArguments),
    "export": partial(parse_on_run, ExportArguments),
    "generate": _own(GenerateArguments),
    "insert": _own(InsertArguments),
    "judge": _on_data(JudgeArguments),
    "data prepare": _on_data(PrepareArguments),
    "data inspect": _on_data(InspectArguments),
    "data lidc": _own(LidcArguments),
    "data synth": _own(SynthArguments),
}
"""By a command's words and name, the arguments of the function that runs it."""
