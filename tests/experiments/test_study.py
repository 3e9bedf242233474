"""The page of the study says what the results say."""

from experiments import study


def test_the_page_is_what_the_results_say():
    assert study.PAGE.read_text() == study.page(), "run `python -m experiments.study`"
