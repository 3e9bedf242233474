import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmmae.scaling.batches import epoch_order, plan_batches, shard_samples
from gmmae.system.errors import InputError


@st.composite
def plans(draw):
    samples = draw(st.integers(1, 120))
    batch = draw(st.integers(1, 150))
    return plan_batches(samples, batch, draw(st.integers(1, min(batch, samples, 40))))


def real(dealt, the_plan):
    """The indices of the real samples of each step, in order."""
    by_step = dealt.indices.swapaxes(0, 1).reshape(the_plan.steps, -1)
    mask = dealt.weights.swapaxes(0, 1).reshape(the_plan.steps, -1) > 0
    return [indices[keep] for indices, keep in zip(by_step, mask, strict=True)]


@settings(max_examples=150, deadline=None)
@given(plans(), st.integers(0, 5), st.integers(0, 5))
def test_each_sample_is_real_once_and_the_mean_over_devices_is_that_over_real_samples(the_plan, seed, epoch):
    """Eq. 2, for every step, the partial one too, and whatever the number of devices."""
    order = epoch_order(seed, epoch, the_plan.samples)
    dealt = shard_samples(order, the_plan)
    assert dealt.indices.shape == dealt.weights.shape == (the_plan.sharers, the_plan.steps, the_plan.device_batch)
    steps = real(dealt, the_plan)
    np.testing.assert_array_equal(np.concatenate(steps), order)
    assert [len(step) for step in steps] == the_plan.counts.tolist()
    assert sorted(order) == list(range(the_plan.samples))
    values = np.random.default_rng(seed).normal(size=the_plan.samples)
    sums = (values[dealt.indices] * dealt.weights.astype(np.float64)).sum(-1)
    # A weight is rounded to float32, which is 6e-8 of it; the weighted terms are below 5 in size.
    np.testing.assert_allclose(sums.mean(0), [values[step].mean() for step in steps], rtol=0, atol=3e-7)
    for step, members in enumerate(steps):  # padding repeats a real sample of its step
        assert set(dealt.indices[:, step].ravel()) == set(members)
        assert (dealt.weights[:, step] == 0).sum() == the_plan.sharers * the_plan.device_batch - len(members)


def test_the_order_changes_with_the_seed_and_the_epoch_and_with_nothing_else():
    first = epoch_order(0, 0, 50)
    np.testing.assert_array_equal(epoch_order(0, 0, 50), first)
    others = [epoch_order(*where, 50) for where in ((0, 1), (1, 0), (1, 1))]
    assert len({tuple(order) for order in (first, *others)}) == 4


def test_more_devices_than_samples_are_refused():
    with pytest.raises(InputError, match=r"parallel.devices must be .* 6; got 7"):
        plan_batches(6, 32, 7)
