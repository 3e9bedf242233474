import gc
import sys
from types import ModuleType

import pytest

from gmmae.system import garbage
from tests.launched import python

END = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # handlers run in the reverse order, so this one runs last
from gmmae.system.guard import guarded
guarded(lambda: 0)
"""


@pytest.fixture(autouse=True)
def thawed():
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_while_modules_are_imported(monkeypatch):
    with garbage.no_collection_of_imports():
        assert not gc.isenabled()
        monkeypatch.setitem(sys.modules, "imported_by_this_test", ModuleType("imported_by_this_test"))
    assert gc.isenabled()
    assert gc.get_freeze_count()


def test_collections_go_on_after_an_import_that_fails():
    with pytest.raises(ImportError), garbage.no_collection_of_imports():
        raise ImportError
    assert gc.isenabled()


def test_a_command_ends_without_a_collection():
    assert python("-c", END).stdout == "True\n"
