"""Runs of one process share data and programs, and are those of fresh processes to the bit."""

from gmmae.training import loop
from gmmae.training.compilation import RunCache
from gmmae.training.parallel import Devices
from gmmae.training.records import read_history
from tests.small import Recorder, losses, small


def test_seeds_rates_and_schedules_of_a_batch_share_one_program(tmp_path, monkeypatch):
    compiled = []
    compile_for_devices = Devices.compile

    def compile_and_note(devices, function, *args, **options):
        compiled.append(function)
        return compile_for_devices(devices, function, *args, **options)

    monkeypatch.setattr(Devices, "compile", compile_and_note)
    shared = RunCache()
    grid = [("weak", 0), ("linear", 1), ("linear-warmup", 2), ("sqrt", 3)]
    for scaling, seed in grid:
        config = small(scaling=scaling, seed=seed, parallel__simulate_devices=2, stop__max_epochs=1)
        loop.run(config, tmp_path / scaling, Recorder(), cache=shared)
    assert len(compiled) == 2, "one program for training and one for validation"
    loop.run(small(stop__max_epochs=1), tmp_path / "strong", Recorder(), cache=shared)
    assert len(compiled) == 3, "another batch is another program for training"


def test_runs_that_share_programs_are_those_of_fresh_ones_to_the_bit(tmp_path):
    shared = RunCache()
    for i, scaling in enumerate(("weak", "linear-warmup")):
        config = small(scaling=scaling, seed=i, parallel__simulate_devices=2)
        loop.run(config, tmp_path / f"shared-{i}", Recorder(), cache=shared)
        loop.run(config, tmp_path / f"fresh-{i}", Recorder())
        rows = [losses(read_history(tmp_path / f"{kind}-{i}" / "history.csv")) for kind in ("shared", "fresh")]
        assert rows[0] == rows[1]
