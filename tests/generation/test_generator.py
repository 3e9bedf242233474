"""The generator on an untrained model of synthetic nodules: what holds whatever the model has learnt."""

import dataclasses

import jax
import numpy as np
import pytest

from gmmae.config.schema import changed
from gmmae.data import sources
from gmmae.data.extraction import prepare
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import OWN, joined
from gmmae.generation import folder
from gmmae.generation import generator as generators
from gmmae.generation.generator import Options
from gmmae.generation.judging.novelty import nearest, symmetries
from gmmae.models.settings import ModelConfig
from gmmae.system.errors import InputError
from gmmae.training.trained import Trained
from gmmae.workloads import nodules, registry
from tests.small import SMALL_LATTICE, small


@pytest.fixture(scope="module")
def model():
    config = small(**SMALL_LATTICE)
    workload = registry.build(config)
    return Trained(config, None, workload, jax.jit(workload.init)(jax.random.key(0)))  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def cohorts():
    whole, split = sources.load(DataConfig(shape=8, samples=60, validation=20))
    return whole.take(split.train), whole.take(split.validation)


@pytest.fixture(scope="module")
def generator(model, cohorts):
    return generators.fit(model, *cohorts)


@pytest.fixture(scope="module")
def found(generator):
    return generator.sample(40, 3)


def shares(values):
    return np.clip((values.astype(float) + 1000) / 1400, 0, 1).reshape(len(values), -1)


def donors(cohorts, found):
    return [cohorts[0].names.index(name) for name in found.shape_donors[:, 0]]


def test_a_model_in_float64_decodes_in_float64(model, cohorts):
    params = jax.tree.map(lambda array: np.asarray(array, np.float64), model.params)
    exact = model._replace(config=changed(model.config, precision="float64"), params=params)
    latent = np.ones((3, 8))
    double, single = (generators.decode(one, latent.astype(kind))["density"] for one, kind in ((exact, "f8"), (model, "f4")))
    assert (double.dtype, single.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(double, single, atol=1e-4)


def test_the_same_seed_makes_the_same_nodules_and_another_others(generator):
    first, second, third = (generator.sample(10, seed).nodules for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.values, second.values)
    assert np.abs(first.values.astype(int) - third.values).mean() > 10
    assert len({*first.names, *third.names}) == 20


def test_no_nodule_is_nearer_to_the_training_set_than_five_in_a_hundred_real_ones(found, cohorts):
    training, held_out = cohorts
    new, real = (
        nearest(nodules.values, training.values, (-1000.0, 400.0), symmetric=True) for nodules in (found.nodules, held_out)
    )
    np.testing.assert_allclose(found.distance, new.distance, rtol=1e-4)
    assert new.distance.min() >= np.percentile(real.distance, 5) - 1e-6
    assert found.nearest.tolist() == [training.names[i] for i in new.index]


def test_what_no_training_nodule_has_is_refused(generator, cohorts):
    training, table = cohorts[0], {**cohorts[0].table}
    table[f"{OWN}malignancy"] = np.where(np.arange(len(training.names)) % 2, "5", "n/a")
    scored = generator._replace(training=training._replace(table=table))
    for of, options, words in (
        (scored, Options(malignancy=(1.0, 2.0)), "--malignancy must hold .*; got 1 to 2, and those .* have 5 to 5"),
        (generator._replace(min_distance=2.0), Options(), r"differ by at least 2 from .*; got \d+ copies"),
    ):
        with pytest.raises(InputError, match=words):
            of.sample(4, options=options)


def test_masks_and_grey_levels_are_those_of_the_first_donor(found, cohorts):
    real = cohorts[0].take(np.array(donors(cohorts, found)))
    assert found.nodules.masks is not None
    assert real.masks is not None
    np.testing.assert_allclose(np.sort(shares(found.nodules.values)), np.sort(shares(real.values)), atol=1e-3)
    np.testing.assert_array_equal(found.nodules.masks.sum((1, 2, 3)), (real.masks > 0).sum((1, 2, 3)))
    made, own = (shares(part.values)[0][part.masks[0].ravel() > 0].mean() for part in (found.nodules, real))
    assert made == pytest.approx(own, abs=0.05)


def test_nodules_in_another_unit_stay_in_it(model, cohorts):
    floating = (nodules._replace(values=nodules.values.astype(np.float32)) for nodules in cohorts)
    values = generators.fit(model, *floating).sample(2).nodules.values
    assert values.dtype == np.float32
    assert (values % 1).any()


def test_diameters_follow_the_masks_in_cubes_of_one_width(model, cohorts):
    training, held_out = (nodules.take(np.arange(len(nodules.names))) for nodules in cohorts)
    training.table["edge_mm"][:] = held_out.table["edge_mm"][:] = 20.0
    made = generators.fit(model, training, held_out).sample(20, 3)
    own = training.take(np.array(donors((training,), made)))
    np.testing.assert_allclose(made.nodules.diameter_mm, own.diameter_mm * made.nodules.edge_mm / own.edge_mm, rtol=1e-6)
    assert np.ptp(own.diameter_mm / own.edge_mm) > 0.1


def test_nodules_and_masks_are_turned_together_and_each_by_lot(generator, found, monkeypatch):
    monkeypatch.setattr(generators, "symmetries", lambda values: [values])
    plain = generator.sample(40, 3).nodules
    for name in ("values", "masks"):
        of_turns = list(symmetries(getattr(plain, name)))
        expected = [of_turns[turn][i] for i, turn in enumerate(found.turn)]
        np.testing.assert_array_equal(getattr(found.nodules, name), expected)
    assert len(set(found.turn.tolist())) > 8


def test_a_model_without_a_decoder_and_nodules_without_diameters_are_refused(model, cohorts):
    with pytest.raises(InputError, match="a workload must have `decode`"):
        generators.fit(model._replace(workload=model.workload._replace(decode=None)), *cohorts)
    with pytest.raises(InputError, match="training nodule must have a diameter"):
        generators.fit(model, cohorts[0].with_columns(diameter_mm=cohorts[0].diameter_mm * np.nan), cohorts[1])


def test_what_is_written_is_read_back_and_joins_the_training_set_alone(generator, tmp_path):
    made = generator.sample(5, 7)
    folder.write(made, generator.training, tmp_path / "made", "run0", 7)
    # Columns that the real nodules have are none of the folder's, and so is a window of HU that is not CT's.
    config = DataConfig(
        shape=8,
        samples=20,
        validation=5,
        cache=str(tmp_path / "cache"),
        window=(-1000.0, 300.0),
        category_column="malignancy",
        group_column="subject",
    )
    back = prepare.load(DataConfig(source="cubes", root=str(tmp_path / "made"), shape=8, cache=config.cache), print)
    back = back.take(np.array([back.names.index(f"{name}.nii.gz") for name in made.nodules.names]))
    np.testing.assert_array_equal(back.values, made.nodules.values)
    np.testing.assert_array_equal(back.masks, made.nodules.masks)
    assert back.categories == made.nodules.categories
    # Siblings are in the group of the donor of their shape, so that a division keeps them together.
    group_of = dict(zip(generator.training.names, generator.training.groups, strict=True))
    assert list(back.groups) == [group_of[donor] for donor in made.shape_donors[:, 0]]
    both = (config, dataclasses.replace(config, augment_with=str(tmp_path / "made")))
    alone, more = (nodules.build(nodules.Config(data=data, model=ModelConfig(padding="SAME"))).load() for data in both)
    np.testing.assert_array_equal(more.validation, alone.validation)
    np.testing.assert_array_equal(more.train[:15], alone.train)
    assert more.train.shape == (20, 8, 8, 8)
    own_unit = sources.of_folder(dataclasses.replace(config, source="cubes"), tmp_path / "made")
    with pytest.raises(InputError, match="in one unit"):
        joined(sources.load(config).nodules, prepare.load(own_unit))
