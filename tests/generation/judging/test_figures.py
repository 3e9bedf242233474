import matplotlib.image
import numpy as np

from gmmae.generation.judging import figures
from gmmae.generation.judging.figures import Feature
from gmmae.plotting import canvas

WINDOW = (-1000.0, 400.0)


def volumes(samples, hu):
    return np.full((samples, 4, 6, 6), hu, np.int16)


def test_the_key_names_the_generated_slices_and_half_are_generated():
    figure, key = figures.contact_sheet(volumes(40, -500), volumes(12, 100), WINDOW, seed=0)
    shown = {axes.texts[0].get_text(): axes.images[0].get_array() for axes in figure.axes if axes.images}
    assert len(shown) == 24
    assert {name for name, image in shown.items() if (image == 100).all()} == set(key.split(", "))
    assert len(key.split(", ")) == 12
    assert figures.contact_sheet(volumes(40, -500), volumes(12, 100), WINDOW, seed=1)[1] != key


def test_a_sheet_ends_with_its_last_row():
    figure, key = figures.contact_sheet(volumes(90, -500), volumes(90, 100), WINDOW, seed=0)
    assert len([axes for axes in figure.axes if axes.images]) == 60
    assert len(key.split(", ")) == 30


def test_histograms_and_neighbours_are_drawn(tmp_path):
    rng = np.random.default_rng(0)
    features = [Feature(f"feature {i}", rng.normal(size=50), np.full(30, float(i))) for i in range(4)]
    drawn = figures.feature_histograms(features)
    assert [axes.get_title() for axes in drawn.axes] == ["feature 0", "feature 1", "feature 2", "feature 3", "", ""]
    neighbours = figures.neighbours(volumes(3, 0), volumes(3, 200), ["a", "b", "c"], WINDOW)
    assert [np.asarray(axes.images[0].get_array())[0, 0] for axes in neighbours.axes] == [0, 0, 0, 200, 200, 200]
    for number, figure in enumerate((drawn, neighbours)):
        assert matplotlib.image.imread(canvas.save(figure, tmp_path / f"{number}.png")).std() > 0
