import pytest

from gmmae.base.errors import InputError
from gmmae.report.folders import rebuilt


def test_the_new_folder_replaces_the_old_one_whole(tmp_path):
    place = tmp_path / "report"
    place.mkdir()
    (place / "stale").write_text("old")
    with rebuilt(place) as folder:
        (folder / "fresh").write_text("new")
        assert (place / "stale").exists()
    assert [path.name for path in place.iterdir()] == ["fresh"]
    assert list(tmp_path.iterdir()) == [place]


def test_a_failure_leaves_what_was_there(tmp_path):
    place = tmp_path / "report"
    place.mkdir()
    (place / "stale").write_text("old")
    with pytest.raises(ValueError, match="a fault"), rebuilt(place):
        raise ValueError("a fault")
    assert [path.name for path in place.iterdir()] == ["stale"]
    assert list(tmp_path.iterdir()) == [place]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    rule = r"file/report must be a folder that can be written; got Not a directory"
    with pytest.raises(InputError, match=rule), rebuilt(tmp_path / "file" / "report"):
        pass
