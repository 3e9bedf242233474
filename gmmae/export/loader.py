"""A model exported by gmmae, which needs JAX and NumPy alone, on a CPU or an NVIDIA GPU. Every exported file holds this module.

    unzip -p model.zip load.py > load.py
    python -c "import load; model = load.Model('model.zip'); print(model.about)"

`model.functions` names the functions, such as losses, metrics and describe. Each takes NumPy arrays with any number of samples
along their leading axis and returns NumPy arrays:

    result = model("describe", volumes)

JAX reads a program for six months after its export. Later, `model.params`, the parameters by name, and `model.settings` remain,
and `gmmae.load('model.zip')` builds the model from them.
"""

import json
import tomllib
import zipfile
from contextlib import suppress

import jax
import numpy as np


class Model:
    """The functions of an exported file, with their parameters.

    Attributes:
      about: origin of the model: run, workload, versions, and the shapes of each function's arguments and results.
      functions: their names.
      params: the parameters by name.
      settings: the configuration of the run, by section and key.

    Raises:
      ValueError: the file is not one of `gmmae export`.
    """

    def __init__(self, path):
        self._calls = {}
        with zipfile.ZipFile(path) as archive:
            try:
                self.about = json.loads(archive.read("meta.json"))
                with archive.open("params.npz") as file, np.load(file, allow_pickle=False) as arrays:
                    self.params = dict(arrays)
            except KeyError as error:
                raise ValueError(f"the file must be one of gmmae export; got {path}: {error.args[0]}") from None
            self.functions = tuple(self.about["functions"])
            self.settings = tomllib.loads(self.about["config"])
            for name in self.functions:
                with suppress(Exception):  # a program of another time raises anything
                    program = jax.export.deserialize(bytearray(archive.read(f"{name}.stablehlo")))
                    program.mlir_module()  # which JAX otherwise reads at the first call
                    self._calls[name] = jax.jit(program.call)

    def __call__(self, name, samples):
        """A function's result for samples: an array, or a dictionary, list or tuple of arrays.

        Raises:
          ValueError: the file has no such function, or the samples have another form than `about` says.
        """

        def fitted(leaf, wanted):
            cast = leaf.astype(wanted)
            if not np.can_cast(leaf.dtype, wanted, "same_kind") or (leaf.dtype.kind in "iu" and (cast != leaf).any()):
                raise ValueError(f"{name} takes {wanted} here; got {leaf.dtype}, up to {leaf.max()}")
            return cast

        samples = jax.tree.map(np.asarray, samples)
        if name not in self.functions:
            raise ValueError(f"the function must be one of {', '.join(self.functions)}; got {name!r}")
        if name not in self._calls:
            raise ValueError(
                f"JAX must be able to read the program of {name}; got JAX {jax.__version__}: use that of about['versions'], or "
                "gmmae.load(FILE), which needs the parameters and settings only"
            )
        forms = self.about["functions"][name]["samples"]
        wanted = jax.tree.map(lambda text: text[text.index("[") :], forms)
        leaves, tree = jax.tree.flatten(samples)
        counts = {leaf.shape[:1] for leaf in leaves}
        count = counts.pop() if len(counts) == 1 else None
        given = jax.tree.map(lambda leaf: str([*leaf.shape]), samples)
        fitting = jax.tree.map(lambda leaf: str(["samples", *leaf.shape[1:]]).replace("'", ""), samples)
        if not count or count[0] < 1 or json.loads(json.dumps(fitting)) != wanted:
            raise ValueError(f"{name} takes arrays of the shapes {wanted}, with one sample or more; got {given}")
        samples = tree.unflatten(map(fitted, leaves, (text.partition("[")[0] for text in jax.tree.leaves(forms))))
        with jax.enable_x64(self.about["dtype"] == "float64"):
            return jax.device_get(self._calls[name]([*self.params.values()], samples))
