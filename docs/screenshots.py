"""Takes the screenshots of the documents: a sweep's report, a plan's page and TensorBoard, in headless Chromium.

    python -m docs.screenshots SWEEP PLAN LOGS    # the work directories of a sweep, of a plan, and of a sweep for TensorBoard

Times in the pictures are of the machine that measured them.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

DOCS = Path(__file__).parent
FOLDER = DOCS / "screenshots"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COMMANDS = Path(sys.executable).parent
TIMEOUT_S = 600
START_S = 60

SCALARS = "#scalars&regexInput=compare&_smoothingWeight=0"
"""The part of TensorBoard's address that shows the median runs of all strategies."""


def program(names: Sequence[str], package: str) -> str:
    """Returns the path of the first of these programs.

    Args:
      names: names of the program. One in the folder of the interpreter comes first.
      package: what to install if there is none.
    """
    search = os.pathsep.join([str(COMMANDS), os.environ.get("PATH", "")])
    for name in names:
        if found := shutil.which(name, path=search):
            return found
    sys.exit(f"docs.screenshots needs {' or '.join(names)} on the path; got none. Install {package}.")


def photograph(browser: str, address: str, path: Path, width: int, height: int) -> None:
    """Writes a PNG of a page, in pixels of the window, or ends with a line on what failed."""
    options = ["--headless", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=30000"]
    options += ["--no-sandbox"] if os.geteuid() == 0 else []  # the sandbox does not start for root
    path.unlink(missing_ok=True)
    call = [browser, *options, f"--window-size={width},{height}", f"--screenshot={path}", address]
    done = subprocess.run(call, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if not path.exists():
        sys.exit(f"{browser} must write {path}; it ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    print(f"{path.relative_to(DOCS)}: {path.stat().st_size / 1000:.0f} kB")


@contextmanager
def tensorboard(command: str, folder: Path, logs: str) -> Iterator[str]:
    """Serves the logs in a folder while the context lasts. Yields the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    call = [command, "--logdir", logs, "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(call, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(address, server)
            yield address
        finally:
            server.terminate()


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{address}data/runs", timeout=5) as answer:
                if "strong" in answer.read().decode():
                    return
        except (urllib.error.URLError, TimeoutError):
            pass
        time.sleep(0.5)
    sys.exit(f"TensorBoard must serve the sweep's runs within {START_S} s; it did not.")


def main() -> None:
    """Takes the screenshots of a sweep and of a plan."""
    [sweep, plan, logs] = [Path(word).resolve() for word in sys.argv[1:]]
    browser = program(BROWSERS, "Debian's package chromium")
    photograph(browser, (sweep / "report/report.html").as_uri(), FOLDER / "report.png", 1000, 1300)
    photograph(browser, (plan / "index.html").as_uri(), FOLDER / "plan.png", 1000, 1100)
    with tensorboard(program(["tensorboard"], "the extra test"), logs, "tb") as address:
        photograph(browser, f"{address}{SCALARS}", FOLDER / "tensorboard.png", 1200, 800)
        photograph(browser, f"{address}#hparams", FOLDER / "hparams.png", 1700, 700)


if __name__ == "__main__":
    main()
