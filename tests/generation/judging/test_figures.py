import numpy as np

from gmmae.generation.judging.figures import contact_sheet


def test_the_key_names_the_generated_slices_and_half_are_generated():
    real, generated = (np.full((count, 4, 6, 6), hu, np.int16) for count, hu in ((40, -500), (12, 100)))
    figure, key = contact_sheet(real, generated, (-1000.0, 400.0), seed=0)
    shown = {axes.texts[0].get_text(): axes.images[0].get_array() for axes in figure.axes if axes.images}
    assert len(shown) == 24
    assert {name for name, image in shown.items() if (image == 100).all()} == set(key.split(", "))
    assert len(key.split(", ")) == 12
    assert contact_sheet(real, generated, (-1000.0, 400.0), seed=1)[1] != key
