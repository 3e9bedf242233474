"""Study's strategies: learning rates between weak scaling's and the linear rule's, and the linear rule with β2 in samples."""

from gmmae.config.schema import OptimConfig
from gmmae.scaling.strategies import OptimizerConstants, ScalingStrategy, batch_a_device, constants, linearly


def memory_in_samples(optim: OptimConfig, batch: float) -> OptimizerConstants:
    """Returns Adam with a β2 that remembers as many samples as at the base batch."""
    return constants(optim, batch)._replace(beta2=optim.beta2 ** (batch / optim.batch_size))


MORE = {
    "fourth-root": ScalingStrategy("Fourth-root rule", batch_a_device, lambda k: k**0.25),
    "three-quarters": ScalingStrategy("Three-quarter rule", batch_a_device, lambda k: k**0.75),
    "linear-memory": ScalingStrategy("Linear rule, β2 in samples", batch_a_device, linearly, optimizer=memory_in_samples),
    "linear-warmup-memory": ScalingStrategy(
        "Linear rule + warmup, β2 in samples", batch_a_device, linearly, warmup=True, optimizer=memory_in_samples
    ),
}
