from pathlib import Path

import pytest

from gmmae.plotting import canvas


@pytest.fixture
def drawn(monkeypatch):
    """Figures as objects: what would have been saved."""
    saved = []

    def keep(figure, path):
        saved.append(figure)
        return Path(path)

    monkeypatch.setattr(canvas, "save", keep)
    return saved
