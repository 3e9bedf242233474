"""Runs of one process share data and programs, and are those of fresh processes to the bit."""

from gmmae.training import loop
from gmmae.training.parallel import Devices
from gmmae.training.preparation import RunCache
from tests.small import Recorder, losses, small


def test_runs_of_a_batch_share_one_program_and_are_those_of_fresh_ones_to_the_bit(tmp_path, monkeypatch):
    compiled, compile_for_devices = [], Devices.compile

    def compile_and_note(devices, function, *args, **options):
        compiled.append(function)
        return compile_for_devices(devices, function, *args, **options)

    def programs(cache, **changes):
        """Returns how many programs a run compiled, and its losses."""
        before, display = len(compiled), Recorder()
        loop.run(small(**changes), tmp_path / str(len(list(tmp_path.iterdir()))), display, cache=cache)
        return len(compiled) - before, losses(display.rows)

    monkeypatch.setattr(Devices, "compile", compile_and_note)
    shared, two = RunCache(), {"parallel__simulate_devices": 2}
    # One program for training and one for validation.
    assert programs(shared, scaling="weak", **two)[0] == 2
    assert programs(shared, scaling="linear", seed=1, **two)[0] == 0
    of_cache = programs(shared, scaling="linear-warmup", seed=2, **two)
    assert of_cache == (0, programs(None, scaling="linear-warmup", seed=2, **two)[1])
    inside = {"scaling": "strong", "stop__validate_every_steps": 2}
    # Another batch is another program for training, also for parts of epochs.
    assert programs(shared, **inside)[0] == 1
