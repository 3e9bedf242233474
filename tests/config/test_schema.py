import dataclasses
import math
import re
import tomllib
import typing

import pytest

from gmmae.config import schema
from gmmae.config.rules import ConfigError
from gmmae.config.schema import flatten
from gmmae.config.toml import flatten_table, to_toml, updated
from gmmae.data import settings as data_config
from gmmae.data.extraction.prepare import SOURCES
from gmmae.models.losses import LOSSES
from gmmae.scaling.identity import identity_fields, run_id
from gmmae.sweep.grid import SweepConfig
from gmmae.workloads import registry
from gmmae.workloads import settings as workload_settings
from gmmae.workloads.configuration import read_config
from tests.bad_values import require_refused
from tests.small import RATES

NAN, INF = math.nan, math.inf
COUNT, NOT_NEGATIVE, POSITIVE, SHARE = (0, -1, 1.5, True), (-1, 0.5), (0.0, -1.0, NAN, INF, "1"), (-0.1, 1.0, NAN)
EPOCHS, RATE = ((3, 2), (2, 2), (0, 2), "measured"), (-0.1, NAN, INF)
BAD = [
    (key, value)
    for keys, values in {
        "seed data.seed": (-1, 2**32),
        "loss precision data.source data.padding data.on_error optim.name stop.mode": ("huber", None),
        "model.padding model.activation model.covariance model.rho model.decoder": ("full", 1),
        "data.ndim": (0, 4, True),
        "data.crop": ("", "1.25", "0x", "-1mm", "20 mm", "nanx"),
        "init_from data.root data.csv data.file_column data.diameter_column data.group_column data.augment_with": ("",),
        "data.cache": ("", "none", "off"),
        "compilation_cache": ("", "False", "folder"),
        "data.shape": (3, (3, 4, 5), ()),
        "data.samples": (1,),
        "data.validation": (0, -1, 0.0, 1.0, -0.5, NAN),
        "data.window": ((400.0, -1000.0), (0.0, 0.0), (-INF, 0.0), (0.0, NAN), (0.0,)),
        "model.filters": ((), (8, 0, 8)),
        "model.kernels": ((), (3, 3), (3, 3, 0)),
        "model.latent_dim model.components model.lattice_size model.cell_components": COUNT,
        "model.sigma_floor model.mask_weight model.mass_weight optim.weight_decay": RATE,
        "model.rho_limit": (0.0, 1.01, NAN),
        "optim.learning_rate optim.decay_factor optim.epsilon optim.clip_norm": POSITIVE,
        "optim.beta1 optim.beta2 optim.momentum optim.outer_momentum stop.min_relative_improvement": SHARE,
        "optim.warmup_epochs optim.scaling_warmup_epochs distributed.process_id": NOT_NEGATIVE,
        "optim.batch_size optim.cosine_epochs stop.max_epochs stop.collapse_epochs stop.patience_epochs": COUNT,
        "stop.validate_every_steps parallel.simulate_devices parallel.micro_batch_size parallel.devices": COUNT,
        "parallel.fetch_threads distributed.num_processes checkpoint.every_epochs checkpoint.keep": COUNT,
        "log.every_epochs log.figure_samples data.workers optim.local_steps": COUNT,
        "optim.best_batches": ((0,), (32, -1)),
        "optim.decay_epochs optim.batch_doubling_epochs": EPOCHS,
        "stop.time_limit_s data.scan_time_limit_s parallel.prefetch_mb distributed.stall_timeout_s": POSITIVE,
        "stop.target": (NAN, INF, "loss"),
        "parallel.deterministic_shards": (0, -8, 3, 12),
        "distributed.coordinator": ("", "host", ":80", "host:", "host:0", "host:65536", "host:x"),
        "distributed.local_devices": ((0, -1), "all"),
        "distributed.start_timeout_s distributed.heartbeat_timeout_s": (0.5, NAN, INF),
        "checkpoint.min_interval_s": (-1.0, NAN),
        "log.figure_epochs": ((0, -4),),
    }.items()
    for key in keys.split()
    for value in values
]


DEFAULT = registry.configuration(stop=schema.StopConfig(mode="min"))  # because another metric than the loss must have a mode


def changed(given, key, value):
    """The configuration with one `section.field` changed."""
    return schema.changed(given, **{key.replace(".", "__"): value})


ANY_VALUE = {
    "checkpoint.at_end",
    "scaling",
    "parallel.deterministic",
    "parallel.fast_convolutions",
    "log.tensorboard",
    "data.category_column",
    "data.allow_seen",
    "data.augment",
    "distributed.auto",
    "model.fused",
    "workload",
    "stop.monitor",
}
"""Paths, names and switches: nothing to refuse before they are used."""


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_bad_value_is_refused_by_key_rule_and_value(key, value):
    require_refused(lambda: changed(DEFAULT, key, value), key, value)


def test_every_key_with_a_rule_has_a_bad_value_above():
    assert {key for key, _ in flatten(DEFAULT)} - {key for key, _ in BAD} == ANY_VALUE


EDGES = [
    ("data.validation", 1),
    ("data.validation", 0.001),
    ("data.samples", 2),
    ("model.rho_limit", 1.0),
    ("model.sigma_floor", 0.0),
    ("model.kernels", (7, 5, 6)),  # 16 - 6 - 4 - 5 = 1 voxel
    ("optim.beta1", 0.0),
    ("optim.weight_decay", 0.0),
    ("optim.scaling_warmup_epochs", 0),
    ("optim.decay_epochs", (1, 2)),
    ("stop.target", 0.0),
    ("stop.max_epochs", 1),
    ("parallel.deterministic_shards", 1),
    ("log.figure_epochs", ()),
]


@pytest.mark.parametrize(("key", "value"), EDGES)
def test_what_a_rule_just_allows_is_taken(key, value):
    assert dict(flatten(changed(DEFAULT, key, value)))[key] == value


def test_kernels_that_leave_no_voxel_are_refused_with_the_way_out():
    message = (
        r"model\.kernels must leave at least 1 voxel of data\.shape = 16 under VALID padding; got \(7, 5, 7\), which leaves 0"
    )
    with pytest.raises(ConfigError, match=message + ".*model.padding = SAME"):
        changed(DEFAULT, "model.kernels", (7, 5, 7))
    same = changed(changed(DEFAULT, "model.padding", "SAME"), "model.kernels", (7, 5, 7))
    assert same.settings.model.kernels == (7, 5, 7)


# A value that every key may take and that is not its default.
OTHER = {
    "scaling": "linear-warmup",
    "seed": 3,
    "loss": "mae",
    "precision": "float64",
    "init_from": "runs/other",
    "data.source": "cubes",
    "data.root": "scans",
    "data.csv": "other.csv",
    "data.crop": "20mm",
    "data.padding": "replicate",
    "data.category_column": "kind",
    "data.file_column": "volume",
    "data.diameter_column": "width_mm",
    "data.group_column": "hospital",
    "data.on_error": "refuse",
    "data.workers": 3,
    "data.scan_time_limit_s": 12.5,
    "data.cache": "./cubes",
    "data.augment": True,
    "data.augment_with": "generated",
    "data.allow_seen": True,
    "data.ndim": 2,
    "data.shape": 20,
    "data.samples": 100,
    "data.validation": 0.5,
    "data.window": (-1200.0, 300.5),
    "data.seed": 1,
    "model.filters": (8, 16, 8),
    "model.kernels": (3, 3, 2),
    "model.padding": "SAME",
    "model.activation": "gelu",
    "model.latent_dim": 64,
    "model.components": 10,
    "model.covariance": "paper",
    "model.rho": "tanh",
    "model.sigma_floor": 0.25,
    "model.rho_limit": 0.9,
    "model.decoder": "lattice",
    "model.lattice_size": 4,
    "model.cell_components": 3,
    "model.mask_weight": 0.1,
    "model.mass_weight": 0.2,
    "optim.warmup_epochs": 4,
    "optim.cosine_epochs": 60,
    "model.fused": False,
    "optim.learning_rate": 1 / 3,
    "optim.batch_size": 16,
    "optim.best_batches": (32, 48),
    "optim.local_steps": 4,
    "optim.scaling_warmup_epochs": 10,
    "optim.decay_epochs": (30, 60),
    "optim.decay_factor": 0.2,
    "optim.beta1": 0.8,
    "optim.beta2": 0.99,
    "optim.epsilon": 1e-7,
    "optim.name": "lamb",
    "optim.momentum": 0.8,
    "optim.outer_momentum": 0.25,
    "optim.weight_decay": 0.1,
    "optim.batch_doubling_epochs": (5, 10),
    "optim.clip_norm": 1.0,
    "stop.target": 1e-3,
    "stop.monitor": "error",
    "stop.mode": "max",
    "stop.validate_every_steps": 25,
    "stop.max_epochs": 7,
    "stop.time_limit_s": 60.0,
    "stop.collapse_epochs": 5,
    "stop.patience_epochs": 7,
    "stop.min_relative_improvement": 0.02,
    "parallel.devices": 2,
    "parallel.simulate_devices": 8,
    "parallel.micro_batch_size": 64,
    "parallel.deterministic": True,
    "parallel.deterministic_shards": 8,
    "parallel.fast_convolutions": False,
    "parallel.fetch_threads": 2,
    "parallel.prefetch_mb": 16.0,
    "distributed.auto": False,
    "distributed.coordinator": "host:1234",
    "distributed.num_processes": 4,
    "distributed.process_id": 3,
    "distributed.local_devices": (0, 1),
    "distributed.start_timeout_s": 60.0,
    "distributed.heartbeat_timeout_s": 10.0,
    "distributed.stall_timeout_s": 100.0,
    "checkpoint.every_epochs": 3,
    "checkpoint.min_interval_s": 2.0,
    "checkpoint.at_end": False,
    "checkpoint.keep": 1,
    "compilation_cache": "./compiled",
    "log.tensorboard": False,
    "log.every_epochs": 2,
    "log.figure_epochs": (1, 2),
    "log.figure_samples": 2,
}
MAY_DIFFER_ON_RESUME = {key for key in OTHER if key.startswith(("stop.", "distributed.", "checkpoint.", "log."))} | {
    "data.on_error",
    "data.workers",
    "data.scan_time_limit_s",
    "data.cache",
    "data.root",
    "data.csv",
    "data.augment_with",
    "data.allow_seen",
    "init_from",
    "parallel.devices",
    "parallel.fast_convolutions",
    "parallel.fetch_threads",
    "parallel.prefetch_mb",
    "model.fused",
    "compilation_cache",
}


def id_of(config):
    return run_id(config, {})


def test_another_value_is_known_for_every_key():
    assert {*OTHER, "workload"} == {key for key, _ in flatten(DEFAULT)}


@pytest.mark.parametrize("key", OTHER)
def test_the_run_id_changes_with_what_determines_the_run_and_with_nothing_else(key):
    other = changed(DEFAULT, key, OTHER[key])
    assert (id_of(other) == id_of(DEFAULT)) == (key in MAY_DIFFER_ON_RESUME)
    assert (key in identity_fields(other)) == (key not in MAY_DIFFER_ON_RESUME)


@pytest.mark.parametrize("scaling", ["weak", "linear", "linear-warmup", "sqrt", "sqrt-warmup", "sde", "growing", "local"])
def test_devices_determine_a_run_only_where_its_batch_follows_them(scaling):
    """The batch follows the number of simulated devices; with `strong`, above, it follows none."""
    config = changed(DEFAULT, "scaling", scaling)
    assert id_of(changed(config, "parallel.devices", 2)) != id_of(config)
    virtual = changed(config, "parallel.simulate_devices", 8)
    assert id_of(changed(virtual, "parallel.devices", 2)) == id_of(virtual)


def test_the_run_id_is_twelve_hexadecimal_digits_and_follows_the_data():
    assert re.fullmatch("[0-9a-f]{12}", id_of(DEFAULT))
    assert run_id(DEFAULT, {"train samples": "others"}) != id_of(DEFAULT)


ALL_CHANGED = schema.changed(DEFAULT, **{key.replace(".", "__"): value for key, value in OTHER.items()})


@pytest.mark.parametrize("given", [DEFAULT, ALL_CHANGED], ids=["defaults", "all changed"])
def test_toml_read_back_is_equal(given, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(to_toml(given))
    assert read_config(path) == given


SLICES = """
from __future__ import annotations
from dataclasses import dataclass
from gmmae.workloads import segmentation
from gmmae.workloads.segmentation import build

@dataclass(frozen=True)
class Config(segmentation.Config):
    slices: int = 0
"""


def test_a_sweep_of_a_workload_with_keys_of_its_own_is_read_back(tmp_path):
    """Such keys come after the workload's sections, and belong to the section above them."""
    workload = tmp_path / "slices.py"
    workload.write_text(SLICES)
    settings = registry.load(str(workload)).Config(slices=16)
    sweep = SweepConfig(run=dataclasses.replace(SweepConfig().run, workload=str(workload), settings=settings))
    table = tomllib.loads(to_toml(sweep))
    assert table["run"]["slices"] == 16
    with pytest.raises(ConfigError, match="slices must be a whole number; got 'many'"):
        updated(sweep.run, {"slices": "many"})
    assert {key for key, _ in flatten_table(table)} == {key for key, _ in flatten(sweep)}


@pytest.mark.parametrize(
    ("literal", "choices"),
    [
        (workload_settings.NodulesConfig.__annotations__["loss"], LOSSES),
        (schema.Optimizer, RATES),
        (data_config.DataConfig.__annotations__["source"], ["synthetic", *SOURCES]),
    ],
)
def test_the_configurations_names_are_those_of_the_dictionaries(literal, choices):
    assert typing.get_args(literal) == tuple(choices)
