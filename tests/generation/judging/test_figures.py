import numpy as np

from gmmae.generation.judging.figures import contact_sheet


def test_the_key_names_the_generated_slices_and_half_are_generated():
    real, generated = (np.full((count, 4, 6, 6), hu, np.int16) for count, hu in ((40, -500), (12, 100)))
    figure, key = contact_sheet(real, generated, (-1000.0, 400.0), seed=0)
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    made = [f"{'ABC'[at // 10]}{at % 10 + 1}" for at, image in enumerate(shown) if (image == 100).all()]
    assert (len(shown), len(made), made) == (24, 12, key.split(", "))
    assert contact_sheet(real, generated, (-1000.0, 400.0), seed=1)[1] != key
