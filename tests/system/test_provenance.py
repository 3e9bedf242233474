"""What a record says of where it comes from."""

import pytest

from gmmae.system import provenance


@pytest.mark.parametrize(("count", "words"), [(1, ", 1 core"), (2, ", 2 cores")])
def test_a_processor_comes_with_the_cores_that_the_process_may_use(monkeypatch, count, words):
    monkeypatch.setattr(provenance, "cores", lambda: count)
    name, found, rest = provenance.machine("cpu").partition(words)
    assert (bool(name), found, rest) == (True, words, "")
    assert provenance.machine("NVIDIA H100") == "NVIDIA H100"
