"""What a run writes, and what happens when it cannot: nothing of what was saved is lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gmmae.config.toml import to_toml
from gmmae.system.errors import StorageError
from gmmae.training import loop
from gmmae.training.figures import draw
from gmmae.training.workdir import WorkDir
from tests.small import Recorder, finish, losses, small

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 4], ids=["then the history fails", "then the checkpoint fails"])
def test_a_work_directory_that_goes_away_is_one_line_and_can_be_resumed(tmp_path, at):
    config = small(stop__max_epochs=6, log__tensorboard=True)
    workdir, away = tmp_path / "run", tmp_path / "away"
    with pytest.raises(StorageError, match=r"must .*(No such file or directory|FileNotFoundError)") as caught:
        loop.run(config, workdir, Recorder(at, lambda: workdir.rename(away)))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 74
    if workdir.exists():
        shutil.rmtree(workdir)
    away.rename(workdir)
    _, resumed = finish(config, workdir)
    _, whole = finish(config, tmp_path / "whole")
    assert resumed.rows[0].epoch == 3
    assert losses(resumed.rows) == losses(whole.rows[2:])


# Argument: a folder. A disk of 1 MiB; a run that fills it; the same run with room again.
FULL_DISK = """
mkdir "$1/disk" && mount -t tmpfs -o size=1M none "$1/disk" || exit 99
train="$2 train.py --config $1/config.toml --workdir $1/disk/run"
$train > "$1/out" 2> "$1/error"
echo $? > "$1/code"
rm -r "$1/disk/run/tb"
$train --log.no-tensorboard --stop.max-epochs 1000 --stop.time-limit-s 0.001 > "$1/out2" 2> "$1/error2"
echo $? > "$1/code2"
cp "$1/disk/run/record.json" "$1"
"""


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_last_checkpoint_is_good(tmp_path):
    """Runs in a mount namespace of its own, where a small file system can be mounted without leave."""
    endless = small(stop__max_epochs=100_000, checkpoint__every_epochs=1, log__tensorboard=True, log__every_epochs=1)
    (tmp_path / "config.toml").write_text(to_toml(endless))
    command = ["unshare", "-rm", "sh", "-c", FULL_DISK, "sh", str(tmp_path), sys.executable]
    try:
        ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"}, timeout=300, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if ended.returncode in (1, 99):
        pytest.skip("no mount namespaces for users here")
    said = {name: (tmp_path / name).read_text() for name in ("code", "error", "out", "code2", "error2", "out2")}
    assert said["code"] == "74\n", said
    [line] = [line for line in said["error"].splitlines() if line.startswith("error: ")]
    assert "must" in line
    assert "No space left on device" in line
    assert said["code2"] == "0\n", said
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["stop_reason"] == "time_limit"
    assert record["epochs"] > 1
    assert "resumed after epoch" in said["out2"]


@pytest.mark.slow
def test_figures_that_cannot_be_written_are_one_line(tmp_path):
    config = small(stop__max_epochs=1)
    record, _ = finish(config, tmp_path)
    (tmp_path / "figures" / "losses.png").mkdir()
    with pytest.raises(StorageError, match=r"writing .*figures.* failed \(Is a directory\)") as caught:
        draw(config, record, WorkDir(tmp_path))
    assert "\n" not in str(caught.value)
