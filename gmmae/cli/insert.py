"""`gmmae insert`."""

from gmmae.cli.options import InsertArguments
from gmmae.data.extraction.prepare import SUMMARY, load_prepared, prepare, say_on_stderr
from gmmae.data.extraction.summary import fault_lines
from gmmae.data.settings import DataConfig
from gmmae.generation.insertion.folder import read_scans
from gmmae.generation.insertion.insert import insert
from gmmae.system.files import claim_output, print_result


def command(options: InsertArguments) -> None:
    """Inserts the nodules, and prints a summary."""
    claim_output(options.out)
    read_scans(options.scans)  # before the nodules are read
    config = DataConfig(
        source="cubes",
        root=str(options.nodules),
        crop=options.crop,
        shape=options.size,
        padding="replicate",
        cache=options.cache,
    )
    prepared = prepare(config, say_on_stderr)
    _, lines = insert(load_prepared(prepared), options.scans, options.out, options.seed, say_on_stderr, options.per_scan)
    print_result(options.out, [*fault_lines(prepared.summary, str(prepared.folder / SUMMARY)), *lines])
