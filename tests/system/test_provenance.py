"""What a record says of where it comes from."""

from gmmae.system import provenance


def test_a_processor_comes_with_the_cores_that_the_process_may_use(monkeypatch):
    for count, words in ((1, ", 1 core"), (2, ", 2 cores")):
        monkeypatch.setattr(provenance, "cores", lambda count=count: count)
        assert provenance.machine("cpu").endswith(words)
    assert provenance.machine("NVIDIA H100") == "NVIDIA H100"


def test_the_sources_are_known_by_their_names_and_contents(monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "system" / "provenance.py"))
    hashes = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2")):
        (tmp_path / name).write_text(text)
        hashes.add(provenance.source_hash())
    assert len(hashes) == 3
