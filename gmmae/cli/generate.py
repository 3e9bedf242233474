"""`gmmae generate`."""

import time
from dataclasses import replace

from gmmae.cli.options import GenerateArguments
from gmmae.data import sources
from gmmae.data.extraction.prepare import say_on_stderr
from gmmae.data.settings import DataConfig
from gmmae.generation import folder
from gmmae.generation import generator as generators
from gmmae.generation.generator import Options
from gmmae.generation.insertion.folder import read_scans
from gmmae.generation.insertion.insert import insert
from gmmae.generation.judging.figures import contact_sheet
from gmmae.plotting import canvas
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, print_result, whole_folder
from gmmae.training import fingerprint
from gmmae.training.trained import load, run_config

SHEETS = {"contact_sheet.png": False, "contact_sheet_labelled.png": True}
"""The contact sheets, and whether each one marks the generated nodules."""
NO_GENERATOR = (
    "RUN must have a model that makes volumes of latent vectors, model.decoder = lattice with data.ndim = 3; got another: "
    "train one with --config nodules_generate"
)


def command(options: GenerateArguments) -> None:
    """Generates, writes, draws, and prints where everything is."""
    start = time.perf_counter()
    data, size = getattr(run_config(options.run).settings, "data", None), 0 if options.size == "auto" else options.size
    wanted = Options(options.category, options.diameter_mm, options.malignancy, size, options.bandwidth, options.texture)
    if not isinstance(data, DataConfig) or data.ndim != 3:
        raise InputError(NO_GENERATOR)
    claim_output(options.out)
    generators.require_memory(options.count, data.sample_shape, size)
    if options.insert_into is not None:
        if not data.hu:
            raise InputError("--insert-into needs a model of nodules in HU; got another data.window: leave it out")
        read_scans(options.insert_into)
    trained = load(options.run)
    if trained.workload.decode is None:
        raise InputError(NO_GENERATOR)
    known = fingerprint.checked(options.run, fingerprint.load(trained.config))
    whole = sources.load(replace(data, augment_with=None))  # new nodules are made of real ones only
    training, validation = (whole.nodules.take(part) for part in whole.split)
    if options.insert_into is not None and training.masks is None:
        raise InputError("--insert-into needs a model of nodules with masks; got none: leave it out, or add masks/ to the data")
    generators.candidates(training, wanted)  # fail before fitting if none matches
    generator = generators.fit(trained, training, validation)
    made = generator.sample(options.count, options.seed, wanted)
    inserted = []
    with whole_folder(options.out) as place:
        folder.write(made, training, place, trained.record.run_id, options.seed)
        fingerprint.write(known, place)
        for name, labelled in SHEETS.items():  # of real held-out nodules and generated ones, in random order
            volumes = validation.values, made.nodules.values
            canvas.save(contact_sheet(*volumes, data.window, options.seed, labelled)[0], place / name)
        if options.insert_into is not None:
            _, lines = insert(made.nodules, options.insert_into, place / "scans", options.seed, say_on_stderr)
            inserted = [line.replace(str(place), str(options.out)) for line in lines]
    took = f"nodules in {time.perf_counter() - start:.1f} s"
    lines = [
        f"{options.count} {took}; {made.rejected} too similar to a training nodule were drawn again",
        *(options.out / name for name in ("nodules.csv", folder.DONORS, *SHEETS)),
        *inserted,
        f"to train with them: --data.augment-with {options.out}",
    ]
    print_result(options.out, lines)
