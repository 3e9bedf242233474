"""Commands whose output is piped into `head`, closed, or sent to a full disk; as a shell starts them."""

import subprocess
import sys

import pytest

from tests.launched import ROOT

GMMAE = f"{sys.executable} -c 'from gmmae.cli.main import main; import sys; sys.exit(main())'"
TRAIN, SWEEP = (f"{sys.executable} {name}.py" for name in ("train", "sweep"))


def shell(text):
    """The exit codes of a pipe's commands, and what was said on standard error."""
    done = subprocess.run(["bash", "-c", f"{text}; echo ${{PIPESTATUS[@]}}"], cwd=ROOT, capture_output=True, text=True)
    return [int(code) for code in done.stdout.splitlines()[-1].split()], done.stderr


@pytest.mark.parametrize("command", [f"{TRAIN} --help", f"{SWEEP} --dry-run", GMMAE])
def test_a_reader_that_ends_is_no_error(command):
    """`head -c 0` is gone before anything is written."""
    codes, said = shell(f"({command}; echo $? >&2) | head -c 0")
    assert said == "0\n"
    assert codes == [0, 0]


def test_both_streams_may_lose_their_reader():
    assert shell(f"({GMMAE} trian; echo $? >&3) 3>&2 2>&1 | head -c 0")[1] == "2\n"


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_error(closed):
    assert shell(f"{TRAIN} --help {closed} >/dev/null" if ">&-" not in closed else f"{TRAIN} --help {closed}") == ([0], "")


def test_a_full_disk_under_standard_output_is_told_in_a_line():
    codes, said = shell(f"{GMMAE} --help > /dev/full")
    assert codes == [74]
    assert said == (
        "error: <stdout> must stay writable; writing it failed (No space left on device): make room or send it elsewhere, "
        "and give the same command again\n"
    )
