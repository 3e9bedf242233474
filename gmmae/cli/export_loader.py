"""A model exported by gmmae. It needs JAX and NumPy alone, on a CPU or an NVIDIA GPU. Every exported file holds this module.

    unzip -p model.zip load.py > load.py
    python -c "import load; model = load.Model('model.zip'); print(model.about)"

`model.functions` names the functions, such as losses, metrics and describe. Each one takes samples and returns NumPy arrays.
Samples are NumPy arrays with any number of samples along their leading axis:

    result = model("describe", volumes)
"""

import json
import zipfile

import jax
import numpy as np


class Model:
    """The functions of an exported file, with their parameters.

    Attributes:
      about: origin of the model: run, workload, versions, and the shapes of each function's arguments and results.
      functions: names of the functions.
    """

    def __init__(self, path):
        with zipfile.ZipFile(path) as archive:
            self.about = json.loads(archive.read("meta.json"))
            self.functions = tuple(self.about["functions"])
            with archive.open("params.npz") as file, np.load(file, allow_pickle=False) as arrays:
                self._params = [arrays[f"p{i}"] for i in range(len(arrays))]
            programs = {name: jax.export.deserialize(bytearray(archive.read(f"{name}.stablehlo"))) for name in self.functions}
        self._calls = {name: jax.jit(program.call) for name, program in programs.items()}

    def __call__(self, name, samples):
        """Returns a function's result for samples: an array, or a dictionary, list or tuple of arrays.

        Raises:
          ValueError: the file has no such function, or the samples have another form than `about` says.
        """
        dtype = self.about["dtype"]

        def cast(leaf):
            leaf = np.asarray(leaf)
            return leaf.astype(dtype) if np.issubdtype(leaf.dtype, np.floating) else leaf

        samples = jax.tree.map(cast, samples)
        self._check(name, samples)
        with jax.enable_x64(dtype == "float64"):
            return jax.device_get(self._calls[name](self._params, samples))

    def _check(self, name, samples):
        if name not in self.functions:
            raise ValueError(f"the function must be one of {', '.join(self.functions)}; got {name!r}")
        wanted = jax.tree.map(lambda text: text[text.index("[") :], self.about["functions"][name]["samples"])
        counts = {leaf.shape[:1] for leaf in jax.tree.leaves(samples)}
        count = counts.pop() if len(counts) == 1 else None
        given = jax.tree.map(lambda leaf: str([*leaf.shape]), samples)
        fitting = jax.tree.map(lambda leaf: str(["samples", *leaf.shape[1:]]).replace("'", ""), samples)
        if not count or count[0] < 1 or json.loads(json.dumps(fitting)) != wanted:
            raise ValueError(f"{name} takes arrays of the shapes {wanted}, with one sample or more; got {given}")
