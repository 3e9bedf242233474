"""Files and folders that are there whole, or not at all, whatever happens in between."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from gmmae.system import files
from gmmae.system.errors import InputError, Interrupted, StorageError
from gmmae.system.files import ANYTHING, claim_output, output_file, print_result, whole_file, whole_folder, write_text
from tests.interrupting import Killed, full_disk, killed, moments, tree
from tests.launched import ROOT


def fill(folder, text="new"):
    (folder / "deep").mkdir()
    (folder / "deep" / "one").write_text(text)
    (folder / "mark").write_text(text)


NEW = {"deep/": b"", "deep/one": b"new", "mark": b"new"}
ENDS = [(KeyboardInterrupt, False), (full_disk, False), (killed, True)]


def write(out, **options):
    with whole_folder(out, **options) as place:
        fill(place)


@pytest.mark.parametrize("there", ["nothing", "folder", "link"])
def test_a_folder_that_is_new_or_empty_is_written(tmp_path, there):
    out, real = tmp_path / "a" / "out", tmp_path / "real"
    if there != "nothing":
        out.parent.mkdir()
        real.mkdir()
        out.symlink_to(real) if there == "link" else out.mkdir()
    with whole_folder(out) as place:
        fill(place)
        assert not out.exists() or not list(out.iterdir())
    assert out.is_symlink() == (there == "link")
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert tree(out) == NEW


@pytest.mark.parametrize("name", ["out", "out/thesis.tex"])
def test_what_is_not_the_commands_own_is_left_alone(tmp_path, name):
    out = tmp_path / "out"
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = tree(tmp_path)
    for refused in (partial(write, mark="mark"), partial(claim_output, mark="mark"), write):
        with pytest.raises(InputError, match=r"--out must be a folder .* got .*out, which holds something else"):
            refused(out)
    assert tree(tmp_path) == before
    if out.is_dir():
        write(out, mark=ANYTHING)
        assert tree(out) == NEW


def test_the_folder_in_which_the_command_was_given_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"got \., in which the command was given"):
        write(Path())


def test_a_place_that_cannot_be_written_is_named_and_left(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "link")

    def write_file(path):
        with output_file(path):
            pass

    for refused, name, why in (
        (write, "file/out", "File exists"),
        (claim_output, "x" * 10_000, "File name too long"),
        (write_file, "file/out", "Not a directory"),
        (write_file, "folder", "Is a directory"),
        *((refused, "link", "Too many levels of symbolic links") for refused in (write, claim_output, write_file)),
    ):
        with pytest.raises(InputError, match=rf"--out must be a \w+ that can be written; got .*{name[-9:]} \({why}\)"):
            refused(tmp_path / name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "link"]


def test_a_fault_leaves_nothing_not_even_the_folders_above(tmp_path):
    with pytest.raises(FileExistsError), whole_folder(tmp_path / "a" / "b" / "out") as place:
        list(map(fill, (place, place)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("meanwhile", "error", "words"),
    [
        (lambda place: fill(place.with_name("out")), InputError, "which holds something else"),
        (lambda place: fill(place.rename(place.with_name("away")) / place), StorageError, "No such file or directory"),
    ],
)
def test_what_others_do_meanwhile_is_told(tmp_path, meanwhile, error, words):
    (tmp_path / "out").mkdir()
    with pytest.raises(error, match=words), whole_folder(tmp_path / "out") as place:
        meanwhile(place)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize(("error", "for_good"), ENDS)
def test_at_any_moment_all_is_old_or_new_and_the_same_call_succeeds(tmp_path, error, for_good, earlier):
    """Ctrl-C, a full disk and SIGKILL at each moment at which the disk is touched."""
    at = 0
    for at in range(1, 100):
        root = tmp_path / str(at)
        out = root / "out"
        root.mkdir()
        if earlier:
            out.mkdir()
            fill(out, "old")
            (out / "stale").write_text("old")
        before, after = tree(root), {"out/": b"", **{f"out/{name}": data for name, data in NEW.items()}}
        with moments(root, at, error, for_good) as touched:
            words = "is written, and whole"
            try:
                write(out, mark="mark")
            except (KeyboardInterrupt, StorageError, Killed) as caught:
                words = str(caught)
        if touched.count < at:
            break
        if not for_good:
            seen = {name: data for name, data in tree(root).items() if not name.startswith(".")}
            assert seen in (before, after)
            assert (seen == after) == ("is written, and whole" in words)
        write(out, mark="mark")
        assert tree(root) == after
    assert at > 7  # times at which a small folder needs room on the disk


def test_the_next_call_undoes_a_kill_between_the_renames_even_where_it_is_refused(tmp_path):
    write(tmp_path / ".out.former")
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.lock").touch()
    with pytest.raises(InputError, match="which holds something else"):
        claim_output(tmp_path / "out")
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert tree(tmp_path / "out") == NEW


def test_two_calls_into_one_folder(tmp_path, monkeypatch):
    out, said = tmp_path / "out", io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with whole_folder(out) as place:
        fill(place)
        for call in (write, claim_output):
            with pytest.raises(InputError, match=rf"one process at a time; got .* process {os.getpid()} "):
                call(out)
        second = threading.Thread(target=write, args=(out,), kwargs={"mark": "mark", "waits": True})
        second.start()
        while "waiting for process" not in said.getvalue():
            assert second.is_alive()
    second.join()
    assert tree(out) == NEW
    assert list(tmp_path.iterdir()) == [out]


CALL = """
import pathlib, sys, time
from gmmae.system.files import whole_folder
from gmmae.system.guard import guarded

def write():
    with whole_folder(pathlib.Path(sys.argv[1])) as place:
        (place / "one").write_text("half")
        print("there", flush=True)
        time.sleep(60)

sys.exit(guarded(write))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)])
def test_a_signal_ends_a_process_and_the_next_one_succeeds(tmp_path, number, code):
    out = tmp_path / "out"
    call = [sys.executable, "-c", CALL, out]
    with subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        process.send_signal(number)
    assert (process.returncode, any(tmp_path.iterdir())) == (code, code < 0)
    write(out)
    assert list(tmp_path.iterdir()) == [out]


def test_ctrl_c_in_what_is_said_at_the_end_says_that_all_is_there(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.print", interrupt)
    with pytest.raises(Interrupted, match=r"out is written, and whole"):
        print_result(tmp_path / "out", ["line"])


@pytest.mark.parametrize(("error", "for_good"), ENDS)
def test_at_any_moment_a_file_is_old_or_new_and_the_same_call_succeeds(tmp_path, error, for_good):
    path = tmp_path / "a.txt"
    at = 0
    for at in range(1, 20):
        path.write_text("old")
        with (
            moments(tmp_path, at, error, for_good) as seen,
            suppress(KeyboardInterrupt, StorageError, Killed),
            output_file(path) as part,
        ):
            part.write_text("new")
        if seen.count < at:
            break
        assert path.read_text() in ("old", "new")
        write_text(path, "again")
        assert path.read_text() == "again"
        assert for_good or tree(tmp_path) == {"a.txt": b"again"}
    assert at > 3


def test_several_may_write_one_file_and_the_last_one_stays(tmp_path):
    path = tmp_path / "a.txt"
    with whole_file(path) as one, whole_file(path) as two:
        one.write_text("one")
        two.write_text("two")
    assert tree(tmp_path) == {"a.txt": b"one"}


def test_what_a_killed_process_has_left_of_a_file_goes_once_it_is_old(tmp_path):
    for name, age_s in ((".a.txt.0123abcd.part", files.LEFT_AFTER_S + 60), (".a.txt.4567abcd.part", 60)):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (0, time.time() - age_s))
    (tmp_path / ".a.txt").write_text("mine")
    write_text(tmp_path / "a.txt", "new")
    assert sorted(tree(tmp_path)) == [".a.txt", ".a.txt.4567abcd.part", "a.txt"]


def test_a_device_is_written_as_it_is():
    with output_file(Path("/dev/null")) as part:
        part.write_text("nothing")
    assert not Path("/dev/null").is_file()
