"""What a record says of where it comes from."""

from gmmae.system import provenance


def test_a_processor_comes_with_the_cores_that_the_process_may_use(monkeypatch):
    for count, words in ((1, ", 1 core"), (2, ", 2 cores")):
        monkeypatch.setattr(provenance, "cores", lambda count=count: count)
        assert provenance.machine("cpu").endswith(words)
    assert provenance.machine("NVIDIA H100") == "NVIDIA H100"
