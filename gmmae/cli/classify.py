"""`gmmae classify`."""

from dataclasses import replace

from gmmae.classification import classifiers, report, samples
from gmmae.classification.samples import LabelRule
from gmmae.cli.arguments import data_of
from gmmae.cli.options import ClassifyArguments
from gmmae.config.schema import Config, flatten
from gmmae.data.extraction import medmnist
from gmmae.data.extraction.prepare import say_on_stderr
from gmmae.data.settings import DataConfig
from gmmae.data.sources import origins
from gmmae.data.volumes import to_density
from gmmae.plotting import tables
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, print_result
from gmmae.training import fingerprint
from gmmae.training.trained import restore, run_config
from gmmae.workloads.sources import hashes


def command(options: ClassifyArguments, config: Config) -> None:
    """Classifies, writes the files, prints the table."""
    data, runs = data_of(config, "RUN", config.workload), (options.run, *options.runs)
    low, high = options.label_at_most, options.label_at_least
    if (low is None) != (high is None):
        raise InputError("--label-at-most and --label-at-least must be given together; got one of them")
    if low is not None and high is not None and low >= high:
        raise InputError(f"--label-at-most must be below --label-at-least; got {low:g} and {high:g}")
    places, seeds = [run.resolve() for run in runs], []
    wanted = dict(flatten(config.settings, resumable=False))
    for run in runs:
        if places.count(run.resolve()) > 1:
            raise InputError(
                f"each run must be given once, because results are means over all runs; got {run} twice: leave one out"
            )
        own = run_config(run)
        other = dict(flatten(own.settings, resumable=False))
        if wanted != other:  # their data may be divided in another way than for the training
            changed = [key for key in wanted if wanted[key] != other.get(key)]
            raise InputError(
                f"a run must have the settings with which its test set was held out, and differ from the others in its seed "
                f"only; got {', '.join(changed) or 'another workload'} otherwise in {run}"
            )
        seeds.append(own.seed)
    out = options.out or options.run / "classification"
    claim_output(out, report.JSON)
    named = None if data.category_column == DataConfig.category_column else data.category_column
    rule = LabelRule(options.label_column or named, low, high)
    labelled = samples.load(data, rule)
    basis, nodules = samples.principal_components(labelled, data), labelled.nodules
    inputs, losses = [], []
    now = fingerprint.load(config)
    for run, seed in zip(runs, seeds, strict=True):
        fingerprint.checked(run, now)
        model = restore(replace(config, seed=seed), run)
        if model.workload.encode is None or model.workload.describe is None:
            raise InputError(f"RUN must have a model that describes volumes by mixtures, such as nodules; got {run}")
        inputs.append(samples.inputs(model, nodules, data, options.blocks, basis))
        losses.append(model.record.best_val_loss)
    results = classifiers.compare(labelled, inputs, options.seeds, say_on_stderr)
    verdict = report.verdict(results, nodules.table["group"][labelled.test], nodules.by)
    notes = [verdict, *report.notes(labelled, data, runs, options.seeds)]
    fitted = nodules.take(labelled.rounds[-1][0])
    known = report.published().get(medmnist.dataset_name(data.folder), {}) if data.source == "medmnist" else {}
    volumes, _ = hashes(to_density(fitted.values, data.window, fitted.places))
    about = {
        "runs": list(map(str, runs)),
        "seeds": options.seeds,
        "classes": labelled.classes,
        "notes": notes,
        "losses": losses,
        "blocks": options.blocks,
        "label": rule._replace(column=rule.column or data.category_column),
        "fitted_to": fingerprint.words(volumes, origins(fitted)),
        "patients": sorted(labelled.patients),
    }
    paths = report.write(out, labelled, results, known, about, basis)
    print_result(out, [tables.text_table(*report.table(results, known)), "", *notes, *paths])
