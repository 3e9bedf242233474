"""What a record says of where it comes from."""

from gmmae.system import provenance


def test_a_processor_comes_with_the_cores_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(provenance, "cores", lambda: 1)
    one = provenance.machine("cpu")
    monkeypatch.setattr(provenance, "cores", lambda: 2)
    two = provenance.machine("cpu")
    assert one.endswith(", 1 core")
    assert two == one.replace(", 1 core", ", 2 cores")
    monkeypatch.setattr(provenance.Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    elsewhere = provenance.machine("cpu")  # where the file of Linux is not there
    assert not any(text.startswith(",") for text in (one, elsewhere))
    assert provenance.machine("NVIDIA H100 80GB HBM3") == "NVIDIA H100 80GB HBM3"
