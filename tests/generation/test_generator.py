"""The generator on an untrained model of synthetic nodules: what holds whatever the model has learnt."""

import dataclasses

import jax
import numpy as np
import pytest

from gmmae.config.schema import changed
from gmmae.data import sources
from gmmae.data.extraction import prepare
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import joined
from gmmae.generation import folder
from gmmae.generation import generator as generators
from gmmae.generation.generator import Wanted
from gmmae.generation.judging.novelty import symmetries
from gmmae.models.settings import ModelConfig
from gmmae.system.errors import InputError
from gmmae.training.trained import Trained
from gmmae.workloads import nodules, registry
from gmmae.workloads.lattice import density_at
from tests.small import small

DATA = DataConfig(shape=8, samples=60, validation=20)


@pytest.fixture(scope="module")
def model():
    config = small(model__decoder="lattice", model__lattice_size=2, data__samples=60, data__validation=20)
    workload = registry.build(config)
    return Trained(config, None, workload, jax.jit(workload.init)(jax.random.key(0)))  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def cohorts():
    whole, split = sources.load(DATA)
    return whole.take(split.train), whole.take(split.validation)


@pytest.fixture(scope="module")
def generator(model, cohorts):
    return generators.fit(model, *cohorts)


def test_a_model_in_float64_encodes_and_decodes_in_float64(model, cohorts):
    params = jax.tree.map(lambda array: np.asarray(array, np.float64), model.params)
    exact = model._replace(config=changed(model.config, precision="float64"), params=params)
    few = cohorts[1].take(np.arange(3))
    latent, single = generators.encode(exact, few), generators.encode(model, few)
    assert (latent.dtype, single.dtype) == (np.float64, np.float32)
    np.testing.assert_allclose(latent, single, atol=1e-4)
    assert generators.decode(exact, latent)["density"].dtype == np.float64


def test_the_same_seed_makes_the_same_nodules_and_another_others(generator):
    first, second, third = (generator.sample(10, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.nodules.values, second.nodules.values)
    assert np.abs(first.nodules.values.astype(int) - third.nodules.values).mean() > 10
    assert len(set(first.nodules.names) | set(third.nodules.names)) == 20


def test_no_nodule_is_nearer_to_the_training_set_than_five_in_a_hundred_real_ones(generator, cohorts):
    found = generator.sample(40, seed=3)
    shares = [
        np.clip((n.values.astype(float) + 1000) / 1400, 0, 1).reshape(len(n.values), -1) for n in (found.nodules, *cohorts)
    ]
    new, training, held_out = shares
    views = [training[:, place.ravel()] for place in symmetries(np.arange(512).reshape(1, 8, 8, 8))]
    apart, real = (
        np.min([np.sqrt(((some[:, None] - view) ** 2).mean(-1)).min(1) for view in views], axis=0) for some in (new, held_out)
    )
    np.testing.assert_allclose(found.distance, apart, rtol=1e-4)
    assert apart.min() >= np.percentile(real, 5) - 1e-6
    assert found.nearest[0] in cohorts[0].names


def test_a_category_is_that_of_all_and_must_be_known(generator):
    assert set(generator.sample(8, Wanted("ground-glass")).nodules.categories) == {"ground-glass"}
    with pytest.raises(InputError, match=r"category must be one of ground-glass, .*; got 'nodule'"):
        generator.sample(8, Wanted("nodule"))


def test_diameters_and_scores_are_as_asked_or_no_training_nodule_is(generator, cohorts):
    middle = tuple(np.percentile(cohorts[0].diameter_mm, [30, 70]).tolist())
    found = generator.sample(12, Wanted(diameter_mm=middle)).nodules
    assert ((found.diameter_mm >= middle[0]) & (found.diameter_mm <= middle[1])).all()
    scores = np.where(np.arange(len(cohorts[0].names)) % 2, 5.0, np.nan)
    scored = generator._replace(malignancy=scores)
    donors = scored.sample(12, Wanted(malignancy=(4.0, 5.0))).shape_donors[:, 0]
    assert {cohorts[0].names.index(name) % 2 for name in donors} == {1}
    with pytest.raises(InputError, match=r"--malignancy needs training nodules whose data say so; got none"):
        generator.sample(4, Wanted(malignancy=(4.0, 5.0)))
    with pytest.raises(
        InputError, match=r"--malignancy must hold a training nodule .*; got 1 to 2, and those .* have 5 to 5: widen"
    ):
        scored.sample(4, Wanted(malignancy=(1.0, 2.0)))
    smallest = cohorts[0].diameter_mm.argmin()
    alone = generator._replace(malignancy=np.where(np.arange(len(scores)) == smallest, 5.0, np.nan))
    above = (cohorts[0].diameter_mm[smallest] + 0.001, 900.0)
    with pytest.raises(InputError, match=r"--malignancy must hold .*, and none has one: widen it or the others"):
        alone.sample(4, Wanted(diameter_mm=above, malignancy=(4.0, 5.0)))
    with pytest.raises(InputError, match=r"--diameter-mm must hold a training nodule that fits the other options too"):
        generator.sample(4, Wanted(diameter_mm=(900.0, 901.0)))


def test_masks_have_as_many_voxels_as_that_of_the_first_donor(generator, cohorts):
    found = generator.sample(20, seed=2)
    assert found.nodules.masks is not None
    assert cohorts[0].masks is not None
    donors = [cohorts[0].names.index(name) for name in found.shape_donors[:, 0]]
    wanted = (cohorts[0].masks[donors] > 0).sum((1, 2, 3))
    # Voxels at equal distances from the border are in or out together, so a small cube allows only some numbers.
    assert np.abs(found.nodules.masks.sum((1, 2, 3)) - wanted).mean() < 0.15 * wanted.mean()


def test_where_all_are_copies_it_says_so_instead_of_giving_fewer(generator):
    with pytest.raises(InputError, match=r"must differ by at least 2 from .*; got \d+ copies in \d+ samples"):
        generator._replace(min_distance=2.0).sample(4)


@pytest.fixture
def unturned(generator, monkeypatch):
    """Draws nodules that are not rotated or reflected."""

    def draw(*args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(generators, "_with_random_symmetries", lambda generated, _: generated)
            return generator.sample(*args, **kwargs)

    return draw


def test_another_resolution_shows_the_same_nodules(unturned, monkeypatch):
    monkeypatch.setattr(generators, "with_grey_levels", lambda shares, *_: shares)
    coarse, fine = (unturned(6, seed=4, size=size, texture=0.0).nodules for size in (0, 16))
    assert fine.values.shape == (6, 16, 16, 16)
    assert fine.masks.shape == fine.values.shape
    pooled = fine.values.reshape(6, 8, 2, 8, 2, 8, 2).mean((2, 4, 6))
    # The mean of eight points of a density that is smooth on the scale of voxels; HU of 1400.
    assert np.abs(pooled - coarse.values).mean() < 15


def test_nodules_and_masks_are_turned_together_and_each_by_lot(generator, unturned):
    plain, found = unturned(40, seed=8).nodules, generator.sample(40, seed=8)
    turned, turn = found.nodules, found.turn
    for i, place in enumerate(turn):
        pair = np.stack([plain.values[i], plain.masks[i]])
        np.testing.assert_array_equal(np.stack([turned.values[i], turned.masks[i]]), list(symmetries(pair))[place])
    assert len(set(turn.tolist())) > 8
    assert not unturned(4, seed=8).turn.any()


def test_grey_levels_are_those_of_the_first_donor(generator, cohorts):
    found = generator.sample(3, seed=5)
    donor = cohorts[0].names.index(found.shape_donors[0, 0])
    expected = np.clip(np.sort(cohorts[0].values[donor].ravel()), -1000, 400)
    np.testing.assert_allclose(np.sort(found.nodules.values[0].ravel()), expected, atol=1)
    assert cohorts[0].masks is not None
    assert found.nodules.masks is not None
    own, made = (
        np.clip(some.values[i], -1000, 400)[some.masks[i] > 0].mean() for some, i in ((cohorts[0], donor), (found.nodules, 0))
    )
    # A few voxels of the same distance from the outline are inside of the mask or not.
    assert made == pytest.approx(own, abs=60)


def test_dead_latent_units_are_counted(model, cohorts):
    dead = jax.tree.map(np.array, model.params)
    for layer in ("Dense_0", "path"):
        dead["params"]["encoder"][layer]["kernel"][:, :3] = 0
    assert generators.fit(model, *cohorts).inactive_units == 0
    assert generators.fit(model._replace(params=dead), *cohorts).inactive_units == 3


def test_a_model_without_a_decoder_and_nodules_without_diameters_are_refused(model, cohorts):
    with pytest.raises(InputError, match="a workload must have `decode`"):
        generators.fit(model._replace(workload=model.workload._replace(decode=None)), *cohorts)
    with pytest.raises(InputError, match="training nodule must have a diameter"):
        generators.fit(model, cohorts[0].with_columns(diameter_mm=np.full(len(cohorts[0].names), np.nan)), cohorts[1])


def test_what_is_written_is_read_back_voxel_by_voxel(generator, tmp_path):
    found = generator.sample(5, seed=6)
    folder.write(found, generator.training, tmp_path / "made", "run0", 6)
    back = prepare.load(DataConfig(source="cubes", root=str(tmp_path / "made"), shape=8, cache=str(tmp_path / "cache")), print)
    order = [back.names.index(f"{name}.nii.gz") for name in found.nodules.names]
    np.testing.assert_array_equal(back.values[order], found.nodules.values)
    assert back.masks is not None
    np.testing.assert_array_equal(back.masks[order], found.nodules.masks)
    assert [back.categories[i] for i in order] == list(found.nodules.categories)
    # Siblings are in the group of the donor of their shape, so that a division keeps them together.
    group_of = dict(zip(generator.training.names, generator.training.groups, strict=True))
    assert [back.groups[i] for i in order] == [group_of[donor] for donor in found.shape_donors[:, 0]]


def test_generated_cubes_join_the_training_set_and_leave_validation_alone(generator, tmp_path):
    folder.write(generator.sample(5, seed=7), generator.training, tmp_path / "made", "run0", 7)
    # Columns that the real nodules have are none of the folder's, and so is a window of HU that is not CT's.
    columns = {"category_column": "malignancy", "group_column": "subject", "window": (-1000.0, 300.0)}
    config = DataConfig(shape=8, samples=20, validation=5, cache=str(tmp_path / "cache"), **columns)
    both = (config, dataclasses.replace(config, augment_with=str(tmp_path / "made")))
    alone, more = (nodules.build(nodules.Config(data=data, model=ModelConfig(padding="SAME"))).load() for data in both)
    np.testing.assert_array_equal(more.validation, alone.validation)
    np.testing.assert_array_equal(more.train[:15], alone.train)
    assert more.train.shape == (20, 8, 8, 8)
    assert more.names is not None
    assert more.names["train"][15:] == [f"generated-7-{i:05d}.nii.gz" for i in range(5)]
    own_unit = sources.of_generated(dataclasses.replace(config, source="cubes"), tmp_path / "made")
    with pytest.raises(InputError, match="in one unit"):
        joined(sources.load(config).nodules, prepare.load(own_unit))


def test_a_resized_volume_keeps_its_voxels_cubic_and_its_centre():
    """A ramp in mm is the same ramp on the new voxels, between the centres of the outermost old ones."""
    shape, new = (12, 16, 20), generators.resized((12, 16, 20), 24)
    assert new == (14, 19, 24)

    def ramp(of):
        away = [(np.arange(n) - (n - 1) / 2) * (20 / max(of)) for n in of]
        return np.tensordot((1.0, 10.0, 100.0), np.stack(np.meshgrid(*away, indexing="ij")), axes=1)

    found = generators._resampled(ramp(shape)[None], new)[0]
    inner = (slice(1, -1),) * 3
    assert found[inner] == pytest.approx(ramp(new)[inner], abs=1e-9)


def test_a_mixture_of_a_resized_volume_lies_where_it_lay():
    """A round Gaussian in mm is evaluated at the distances that the new voxels have from its middle."""
    shape, new = (12, 16, 20), generators.resized((12, 16, 20), 24)
    half = np.array(shape) / 20  # mm; the longest axis is from -1 to 1
    covariance = np.diag((0.3 / half[::-1]) ** 2)
    density = density_at(np.ones((1, 1)), np.zeros((1, 1, 3)), covariance[None, None], new, generators._stretch(shape, new))[0]
    away = np.meshgrid(*[(np.arange(n) - (n - 1) / 2) / 12 for n in new], indexing="ij")
    wanted = np.exp(-0.5 * sum(axis**2 for axis in away) / 0.3**2)
    assert density / density.max() == pytest.approx(wanted / wanted.max(), rel=1e-4)


def test_an_axis_is_not_left_with_too_few_voxels():
    with pytest.raises(InputError, match="--size must leave at least 4 voxels along each axis; got 5, which makes 3 × 4 × 5"):
        generators.resized((12, 16, 20), 5)
