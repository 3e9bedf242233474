"""Writes the report of a sweep, finished or not: Markdown, one HTML file, tables, figures and TensorBoard."""

from collections.abc import Callable, Sequence
from pathlib import Path

from gmmae.plotting import document, tables
from gmmae.plotting.document import Block, Bullets, Folded, Heading, Paragraph
from gmmae.plotting.tables import Table
from gmmae.scaling.cost import Cluster
from gmmae.sweep.grid import SweepConfig
from gmmae.sweep.report import findings, results, strategy_figures, strategy_tables, tensorboard, throughput_page
from gmmae.sweep.report.results import Results
from gmmae.system.files import ANYTHING, whole_folder, write_text

MODES = {
    "virtual": "virtual: one device computes the batch of n devices exactly, and times on n devices are projected",
    "measured": "measured: each run ran on its number of devices",
    "throughput": "throughput: step times only, nothing is trained to a target",
}
"""Descriptions of the modes."""

Section = Callable[[Sequence[Results]], Sequence[Block]]
"""A function that returns more blocks for the page, from the results for each cluster."""


def write(config: SweepConfig, root: Path, clusters: Sequence[Cluster], section: Section = lambda _: ()) -> list[Path]:
    """Writes the report under `report` in the sweep's folder, and TensorBoard logs of its runs under `tb`.

    Args:
      config: the configuration of the sweep.
      root: the work directory. Any of its files may be missing.
      clusters: the clusters that times of virtual runs are projected to. Most tables and figures use the first possible one.
      section: returns more blocks, shown after the first table of a sweep that trains to a target.

    Returns:
      The HTML page, the Markdown page, and the TensorBoard folder if any run has a history.

    Raises:
      InputError: a file of the sweep cannot be read, or the report cannot be written.
    """
    by_cluster = [results.read(config, root, cluster) for cluster in clusters or [None]]
    by_cluster.sort(key=lambda found: found.clock.kind == "unknown")
    first = by_cluster[0]
    place = first.folder.report
    with whole_folder(place, "FOLDER", ANYTHING, waits=True) as folder:
        (folder / "figures").mkdir()
        _save(_title(first), _blocks(by_cluster, folder / "figures", section), folder)
        if config.mode != "throughput":
            write_text(folder / "runs.csv", strategy_tables.runs_csv(first))
    shown = tensorboard.write(first)
    return [place / "report.html", place / "report.md", *([shown] if shown else [])]


def _save(title: str, blocks: Sequence[Block], folder: Path) -> None:
    (folder / "tables").mkdir()
    for table in (block for block in document.unfolded(blocks) if isinstance(block, Table)):
        for ending, text in (("csv", tables.csv_text), ("md", tables.markdown)):
            write_text(folder / "tables" / f"{table.name}.{ending}", text(table))
    write_text(folder / "report.md", document.markdown(blocks, folder))
    write_text(folder / "report.html", document.html(title, blocks))


def _title(found: Results) -> str:
    short = f", {found.clock.short}" if found.clock.short else ""
    return f"Scaling strategies compared: {found.folder.root.resolve().name}{short}"


def _blocks(by_cluster: Sequence[Results], figures: Path, section: Section) -> list[Block]:
    """Returns the headline, a figure, a table and the cautions. Everything else is folded."""
    found = by_cluster[0]
    title = Heading(_title(found), 1)
    if found.config.mode == "throughput":
        return [title, *throughput_page.blocks(found, figures), _grounds(by_cluster)]
    lead: list[Block] = [title, Paragraph(findings.headline(found))]
    done = len(found.runs) + len(found.failed)
    if done < found.total:
        lead.append(Paragraph(f"**{done} of {found.total} runs are computed.** The report covers these."))
    cautions = [Bullets(tuple(texts))] if (texts := findings.cautions(found)) else []
    if not found.runs:
        return [*lead, *cautions, _grounds(by_cluster)]
    lead += [strategy_figures.time_to_target(found, figures), strategy_tables.endings(found), *cautions, *section(by_cluster)]
    if shown := _tables(by_cluster):
        lead.append(Folded("Tables", shown))
    drawn = (
        strategy_figures.samples(found, figures),
        strategy_figures.warmup(found, figures),
        strategy_figures.losses(found, "strong", 4, figures),
        strategy_figures.losses(found, "weak", 5, figures),
    )
    return [*lead, Folded("Figures", drawn), _grounds(by_cluster)]


def _tables(by_cluster: Sequence[Results]) -> tuple[Table, ...]:
    found = by_cluster[0]
    possible = (
        strategy_tables.strong_efficiency(found),
        strategy_tables.other_efficiencies(found),
        strategy_tables.clusters(by_cluster),
        strategy_tables.epoch_times(found),
        strategy_tables.step_times(found),
        strategy_tables.times_to_target(found),
        strategy_tables.paired(found),
    )
    return tuple(table for table in possible if table is not None)


def _grounds(by_cluster: Sequence[Results]) -> Folded:
    """Returns the source of the times, and the devices and versions."""
    found = by_cluster[0]
    body: list[Paragraph] = []
    if found.clock.note and found.config.mode != "throughput":
        whole = " Every step of an epoch counts as a full one, including the last." if found.clock.kind == "projected" else ""
        body.append(Paragraph(f"**Times**: {found.clock.note}{whole}"))
        body += [Paragraph(other.clock.note) for other in by_cluster[1:] if other.clock.kind != found.clock.kind]
    return Folded("Times, devices and versions", (*body, Paragraph(_provenance(found))))


def _provenance(found: Results) -> str:
    """Returns the mode, the devices and the versions as text."""
    sources = [(run.record.device_kind, run.record.versions, run.record.git_commit) for run in found.runs]
    sources += [(timings.device_kind, timings.versions, timings.git_commit) for timings in found.timings]
    kinds = sorted({kind for kind, _, _ in sources})
    versions = sorted({f"{name} {version}" for _, used, _ in sources for name, version in used.items()})
    commits = sorted({commit for _, _, commit in sources if commit})
    parts = [f"Mode {MODES[found.config.mode]}"]
    parts += [f"device: {', '.join(kinds)}"] if kinds else []
    parts += [f"versions: {', '.join(versions)}"] if versions else []
    parts += [f"commit: {', '.join(commits)}"] if commits else []
    return ". ".join(part[0].upper() + part[1:] for part in parts) + "."
