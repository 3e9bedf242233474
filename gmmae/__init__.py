"""Gaussian-mixture autoencoders of small volumes, and other workloads, trained data-parallel by several scaling strategies.

The public interface, of which `docs/api.md` has examples; everything else may change:

    Config, configure     what a run is
    train, load           run it, and use what it gave
    mixture               mixtures of normal distributions in 1, 2 or 3 dimensions: densities, samples, logits
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmmae.config.schema import Config
    from gmmae.models import mixture
    from gmmae.training.trained import Trained, load, train
    from gmmae.workloads.configuration import configure

__version__ = "0.1.0"

__all__ = ["Config", "Trained", "configure", "load", "mixture", "train"]

_PLACES = {"Config": "gmmae.config.schema", "configure": "gmmae.workloads.configuration", "mixture": "gmmae.models"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 functions, classes and a module
    """Imports what is asked for, and nothing before: JAX must not start before a run's devices are known."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = import_module(_PLACES.get(name, "gmmae.training.trained"))
    return import_module(f"{place.__name__}.{name}") if name == "mixture" else getattr(place, name)
