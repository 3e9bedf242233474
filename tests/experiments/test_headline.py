"""The first figure of the README: time to the target on a slow and on a fast machine, and its numbers in the documents."""

from statistics import median

from experiments import headline, outcomes
from experiments.machines import H100
from tests.documents.test_figures import README, USERS


def test_the_figure_has_a_panel_for_each_machine_with_one_scale():
    drawn = headline.figure()
    titled = [axes for axes in drawn.axes if axes.get_title()]
    assert [axes.get_title() for axes in titled] == list(headline.PANELS.values())
    assert titled[0].get_ylim() == titled[1].get_ylim()
    assert "projected" in drawn.get_suptitle()


def test_the_first_figure_in_numbers():
    assert [row for row in headline.ratio_rows() if row not in USERS] == []
    fast, slow = headline.PANELS
    ratios = headline.ratios()
    sooner = {key: sum(ratio < 1 for ratio in of) for key, of in ratios.items()}
    assert [sooner["weak", n, slow] for n in (2, 4, 8, 16, 32)] == [1, 0, 0, 0, 0]
    assert "faster than weak scaling in all six seeds from 4 devices on, and in five on 2" in README
    assert fast == H100
    assert sooner["weak", 32, fast] == 6
    assert "weak scaling is about as fast on 2 to 16, faster on 32" in README
    relative = headline.relative_times(fast, headline.rows())
    assert min(map(median, relative.values())) > 1 / 1.45
    assert "no strategy is more than 1.45 times as fast as one H100" in README
    weak = [f"{median(ratios['weak', 8, machine]):.2f}" for machine in (slow, fast)]
    assert f"Weak scaling takes {weak[0]} times strong scaling's time on 8 K80s, and {weak[1]} on 8 H100s" in README


def test_the_linear_rule_in_the_readme():
    def came(name, n):
        rows = outcomes.by_arm(outcomes.cells(name), ("linear",))["linear", n]
        return f"{sum(map(outcomes.reached, rows))} of {len(rows)}"

    assert {came("nodules_real", n) for n in (4, 8, 16, 32)} == {"0 of 6"}
    assert f"in {came('nodules_real', 2)} seeds on 2 devices, and in 0 of 6 from 4 on" in README
    assert f"with SGD and momentum in {came('momentum', 8)} on 8" in README
