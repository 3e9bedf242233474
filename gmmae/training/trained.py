"""The Python interface: train a configuration, load a trained model. `docs/api.md` shows it."""

import math
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, cast

import jax
import numpy as np
from flax.errors import FlaxError
from jaxtyping import PyTree

from gmmae.config.schema import LOSS, Config
from gmmae.config.toml import updated
from gmmae.multihost.distributed import join_processes
from gmmae.system.errors import InputError
from gmmae.system.null_object import IDLE
from gmmae.training import fingerprint, loop, preparation, terminal
from gmmae.training.checkpoint import filled, trained
from gmmae.training.parallel import choose
from gmmae.training.records import Record, epoch_ends
from gmmae.training.workdir import WorkDir
from gmmae.workloads import contract, sources
from gmmae.workloads.configuration import on_its_data, read_config, require_source
from gmmae.workloads.interface import Params, PerSample, Samples, Workload
from gmmae.workloads.sources import CheckedSource, Fetcher


def train(config: Config, workdir: str | Path, *, quiet: bool = False) -> Record:
    """Trains to the end, or resumes the run in the work directory, on all devices, and draws its figures.

    Raises:
      InputError: the configuration does not fit the machine, the data or the work directory.
    """
    if not (isinstance(config, Config) and isinstance(workdir, str | Path)):
        raise InputError(f"train takes a configuration of gmmae.configure and a folder; got {config!r:.80} and {workdir!r}")
    with join_processes(config) as group:
        record = loop.run(config, Path(workdir), IDLE if quiet or not group.primary else terminal.display(), group)
    if group.primary:
        from gmmae.training import figures  # matplotlib is imported where a figure is drawn

        figures.draw(config, record, WorkDir(Path(workdir)))
    return record


class Trained(NamedTuple):
    """A trained model: configuration and record of its run, its workload, and the best parameters, on the host."""

    config: Config
    record: Record
    workload: Workload
    params: Params

    def losses(self, samples: Samples) -> np.ndarray:
        """One loss for each sample; `samples` are as those of `workload.load()`."""
        return self._applied(partial(contract.losses, self.workload, keys=None), samples)

    def metrics(self, samples: Samples) -> Mapping[str, np.ndarray]:
        """One value for each sample and metric of the workload."""

        def of_each(params: Params, samples: Samples) -> PerSample:
            contract.values(self.workload, params, samples)  # refuses other shapes; nothing needs its numbers
            return self.workload.metrics(params, samples)

        return self._applied(of_each, samples)

    def evaluate(self, samples: Samples) -> Mapping[str, np.ndarray]:
        """One value for each sample of the loss, which is the first, and of each metric."""
        values = self._applied(partial(contract.values, self.workload), samples)
        return {LOSS: values[LOSS], **values}  # JAX puts names in order

    def describe(self, samples: Samples) -> Mapping[str, np.ndarray]:
        """The workload's description of samples; for nodules mixtures (weights, means, covariances) and densities."""
        return self._applied(self._required("describe"), samples)

    def encode(self, samples: Samples) -> np.ndarray:
        """One latent vector for each sample."""
        return self._applied(self._required("encode"), samples)

    def decode(self, latent: np.ndarray) -> Mapping[str, np.ndarray]:
        """The entries of `describe` that do not need the samples, of latent vectors."""
        return self._applied(self._required("decode"), latent)

    def refine(self, samples: Samples, steps: int = 30) -> Mapping[str, np.ndarray]:
        """`describe` of nodules after steps of Adam on each mixture (`gmmae.models.refine`).

        It adds each sample's `loss_before` and `loss`, and the `seconds` that they took.
        """
        if not isinstance(steps, int) or steps < 0:
            raise InputError(f"steps must be a whole number of at least 0; got {steps!r}")
        refine = self._required("refine")
        described = self.describe(samples)
        results, seconds = zip(*self._batches(lambda _, start: refine(start, steps), described), strict=True)
        of_each = np.repeat(seconds, [len(result["loss"]) for result in results]) / len(results[0]["loss"])
        return {**described, **_joined(results), "seconds": of_each}

    def _required(self, name: str) -> Callable[..., PyTree]:
        if (function := getattr(self.workload, name)) is None:
            raise InputError(f"a workload must have `{name}` for this; got {self.config.workload}, which has none")
        return function

    def _applied(self, function: Callable[..., PyTree], samples: Samples) -> PyTree:
        return _joined([result for result, _ in self._batches(function, samples)])

    def _batches(self, function: Callable[..., PyTree], samples: Samples) -> list[tuple[PyTree, float]]:
        """Values on the host and seconds of each batch, by one program, as in the run's validation."""
        samples = sources.checked(samples, "the samples", self.config.int_bytes)
        total, values = sources.count(samples), []
        batch = min(total, preparation.at_once(self.config, preparation.EVAL_DEVICE_BATCH))
        with preparation.precision_context(self.config), Fetcher(self.config.parallel.fetch_threads) as fetcher:
            params, like = jax.device_put(self.params), preparation.cast(self.config, sources.one_sample(samples))
            shapes = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (batch, *leaf.shape)), like)
            try:
                program = jax.jit(function).lower(params, shapes)
            except (TypeError, ValueError, LookupError, FlaxError) as error:
                raise InputError(
                    f"samples must have the form of those of `workload.load()`; got others: {' '.join(str(error).split())}"
                ) from error
            if total > batch:
                for shape in (array.shape for array in jax.tree.leaves(program.out_info) if array.shape[:1] != (batch,)):
                    raise InputError(
                        f"a workload's functions must give one entry a sample to be used on more than {batch} samples; got "
                        f"the shape {shape} for {batch}: give fewer samples at a time"
                    )
            program = program.compile()
            for part in self._parts(samples, batch, fetcher):
                start = time.perf_counter()
                result = jax.device_get(program(params, part))
                values.append((result, time.perf_counter() - start))
        if last := total % batch:  # the last batch is filled up
            result, seconds = values[-1]
            values[-1] = jax.tree.map(lambda array: array[:last], result), seconds
        return values

    def _parts(self, samples: Samples, batch: int, fetcher: Fetcher) -> Iterator[Samples]:
        """Batches in the run's precision, of which the last is filled up."""
        total = sources.count(samples)
        parts = np.arange(math.ceil(total / batch) * batch).reshape(-1, batch)
        if not isinstance(samples, CheckedSource):
            samples = preparation.cast(self.config, samples)
            yield from (sources.take_on_host(samples, np.minimum(part, total - 1)) for part in parts)
            return
        read = partial(fetcher.begin, samples, preparation.cast(self.config, samples.first))
        begun = map(read, np.where(parts < total, parts, sources.NO_SAMPLE))
        waits = [next(begun)]
        for _ in parts:
            waits += islice(begun, 1)  # read while the caller works
            yield waits.pop(0)()


def _joined(results: Sequence[PyTree]) -> PyTree:
    return results[0] if len(results) == 1 else jax.tree.map(lambda *arrays: np.concatenate(arrays), *results)


def load(workdir: str | Path, *, workload: str | None = None, **changes: object) -> Trained:
    """Loads the best parameters of a run with its workload, but no data.

    Works in any interpreter, for any devices and reduction of the run, and changes nothing in its folder.

    Args:
      workdir: the folder, or the file of `gmmae export`, of a run that you trust: the Python file that it names is executed.
      workload: where the run's workload is now, if that has moved.
      changes: of the configuration, as in `configure`: `data__root="elsewhere"` for other data.

    Raises:
      InputError: the folder holds no run with a readable checkpoint and finite parameters, or a change has an unknown key.
    """
    own = run_config(Path(workdir), workload)
    other = updated(own, {key.replace("__", "."): value for key, value in changes.items()})
    return restore(on_its_data(require_source(other, own), own), Path(workdir))


def run_config(workdir: Path, workload: str | None = None) -> Config:
    """The configuration of the run in a folder or an exported file, with `workload` in place of its own."""
    return read_config(_opened(workdir).config, workload)


def restore(config: Config, workdir: Path) -> Trained:
    """Loads the best parameters of the run in a folder or an exported file, with the workload of a configuration."""
    folder = _opened(workdir)
    record = folder.read_record()
    assert record is not None
    fingerprint.warn_of_file(config, record.data, workdir)
    workload = preparation.workload_on(choose(None), config)
    like = preparation.blank_state(config, workload)
    if workdir.is_file():
        fault = f"{workdir} must hold the parameters of its workload; got others: export the run again"
        with zipfile.ZipFile(workdir) as archive, archive.open("params.npz") as part, np.load(part) as arrays:
            return Trained(config, record, workload, filled(like.params, dict(arrays), fault))
    checkpoint = trained(folder.checkpoints, like, record)
    if (epoch := checkpoint.progress.best_epoch) != record.best_epoch:  # a run without a checkpoint at its end
        for best in epoch_ends(folder.read_rows())[epoch - 1 : epoch]:
            record = replace(record, best_epoch=epoch, best_val_loss=best.val_loss, best_metrics=dict(best.metrics))
    return Trained(config, record, workload, checkpoint.best)


def _opened(run: Path) -> WorkDir:
    """Files in an exported file have the names of a folder's."""
    folder = WorkDir(cast(Path, zipfile.Path(run)) if run.is_file() and zipfile.is_zipfile(run) else run)
    if not (folder.config.is_file() and folder.record.is_file()):
        names = f"{folder.config.name} and {folder.record.name}"
        raise InputError(f"workdir must be that of a run; got {folder.root}, which has no {names}")
    return folder
