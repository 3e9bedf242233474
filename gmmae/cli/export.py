"""`gmmae export`."""

from shlex import quote

from gmmae.cli.options import ExportArguments
from gmmae.config.schema import Config
from gmmae.export.model_file import LOADER, PLATFORMS, export
from gmmae.system.files import claim_output, print_result


def command(options: ExportArguments, config: Config) -> None:
    """Exports the model, and prints the commands that load it."""
    out = options.out
    claim_output(out, LOADER.encode())
    export(config, options.run, out)
    lines = [
        f"{out}  {out.stat().st_size / 1e6:.1f} MB, for JAX on {' and '.join(PLATFORMS)}; to load it:",
        f"    unzip -p {quote(str(out))} load.py > load.py",
        f"    python -c {quote(f'import load; print(load.Model({str(out)!r}).about)')}",
    ]
    print_result(out, lines)
