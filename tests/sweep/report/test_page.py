import csv
import io
import math
from dataclasses import replace

import pytest

from gmmae.config.schema import changed
from gmmae.sweep.grid import RunKey, SweepConfig, TimingConfig
from gmmae.sweep.report import cells, csv_files, page
from gmmae.system.errors import InputError
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS

TWO = replace(GRID, scaling=("strong", "weak"), devices=(1, 2))
ONE_SEED = replace(GRID, seeds=(0,))
FAST = replace(FLAT, name="Fast", reference_step_s=0.25)


def written(config, root, clusters=(FLAT,)):
    page.write(config, root, list(clusters))
    return (root / "report" / "report.md").read_text(encoding="utf-8")


def rows_of(text, title):
    """The rows of a table of a page by their first two cells."""
    lines = text[text.index(title) :].split("\n\n")[1].splitlines()[2:]
    return {cells[:2]: cells[2:] for cells in (tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in lines)}


@pytest.fixture
def timed(tmp_path):
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    return tmp_path


def test_a_sweep_becomes_a_page_two_files_and_a_board(timed):
    sweeps.small(timed)
    paths = page.write(GRID, timed, [FLAT, FAST])
    place = timed / "report"
    assert paths == [place / "report.html", place / "report.md", timed / "tb"]
    figures = {f"figures/{name}.{ending}" for name in ("time_to_target", "losses") for ending in ("png", "svg")}
    files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert files == {"report.html", "report.md", "runs.csv", "cells.csv", *figures}
    text = (place / "report.md").read_text(encoding="utf-8")
    parts = [
        "# Scaling",
        "**Fastest: ",
        "![Figure 1]",
        "**Table 1. ",
        "**Caution**: 3 seeds",
        "**Failed",
        "Figure 2. ",
        "Table 2. ",
    ]
    assert sorted(parts, key=text.index) == parts
    assert "**35 of 36 runs are computed.**" in text
    assert "`" not in text
    assert "linear-warmup-n4-seed1 (crashed: ended by SIGKILL: out of memory)" in text
    for said in (
        "cpu; jax 0.10.2, python 3.11.9; 8d988e1",
        "α = 0 µs",
        "not measured there",
        "The range of 3 holds the median with 75 %",
    ):
        assert said in text
    for title in ("# Scaling", "Figure 1. ", "Figure 2. ", "**Table 1. ", "**Table 2. "):
        assert "projected" in text[text.index(title) :].partition("\n")[0]
    html = (place / "report.html").read_text(encoding="utf-8")
    assert "figures/" not in html  # it needs nothing but itself
    assert html.count("data:image/") == 2
    table = rows_of(text, "**Table 1. ")
    assert table["strong", "2"] == ("3 of 3", "10", "218", "22.94", "–", "–", "32", "0.00105", "–")
    assert table["weak", "2"] == ("3 of 3", "40", "520", "9.62", "2.39", "1", "64", "0.00105", "–")
    missed = ("1 of 3", "not reached (10 to ∞)", "not reached (130 to ∞)", "–", "∞ (0.60 to ∞)", "1")
    assert table["linear-warmup", "2"] == (*missed, "64", "0.0021", "2 collapsed")
    # Twice as fast in all but the 16 s of all-reduce: 10 · 18.9 s.
    assert rows_of(text, "**Table 2. ")["strong", "2"] == ("218", "189")
    numbers = list(csv.DictReader(io.StringIO((place / "cells.csv").read_text(encoding="utf-8"))))
    assert len(numbers) == 24
    of_weak = next(row for row in numbers if (row["cluster"], row["scaling"], row["devices"]) == ("Flat", "weak", "2"))
    assert float(of_weak["ratio_median"]) == pytest.approx(520 / 218)
    assert (of_weak["reached"], of_weak["slower"], of_weak["p"], of_weak["p_holm"]) == ("3", "3", "0.25", "1.0")


def test_a_half_finished_sweep_without_step_times_is_told_as_far_as_it_is(tmp_path):
    sweeps.reach(ONE_SEED, tmp_path, RunKey("strong", 1, 0), 3)
    text = written(ONE_SEED, tmp_path)
    assert "**1 of 12 runs are computed.**" in text
    assert "**Which strategy is the fastest is unknown.** Times cannot be projected (step times" in text
    assert "**Caution**: one seed is an example, not a comparison." in text
    assert rows_of(text, "**Table 1. ")["strong", "1"][:3] == ("1 of 1", "3", "–")
    assert "Figure 1. Losses" in text


def test_nothing_computed_is_a_report_too_and_stale_files_vanish(tmp_path):
    stale = tmp_path / "report" / "figures" / "figure_9.png"
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    assert page.write(ONE_SEED, tmp_path, [FLAT]) == [tmp_path / "report" / name for name in ("report.html", "report.md")]
    assert not stale.exists()
    assert "No run is computed yet." in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_the_first_cluster_that_can_be_projected_to_is_shown_and_the_other_explained(timed):
    sweeps.reach(ONE_SEED, timed, RunKey("strong", 1, 0), 3)
    text = written(ONE_SEED, timed, [replace(FLAT, name="Odd", reference_step_s=1.0, reference_batch=64), FLAT])
    assert "projected to Flat" in text.splitlines()[0]
    assert "Times cannot be projected (Odd: device batch must be measured, from 8 to 32; got 64" in text


def test_a_sweep_without_a_target_has_a_report(tmp_path):
    config = replace(ONE_SEED, run=changed(ONE_SEED.run, stop__target=None))
    sweeps.add(config, tmp_path, RunKey("strong", 2, 0), "max_epochs", 4)
    assert "**No target was set**" in written(config, tmp_path)


def test_a_broken_record_is_named_and_the_old_report_stays(tmp_path):
    written(ONE_SEED, tmp_path)
    sweeps.reach(ONE_SEED, tmp_path, RunKey("strong", 1, 0), 3)
    (tmp_path / "records" / "strong-n1-seed0.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"strong-n1-seed0\.json must be a run's record"):
        page.write(ONE_SEED, tmp_path, [FLAT])
    assert (tmp_path / "report" / "report.md").exists()


# Headline and cautions


def headline_of(config, root, clusters=(FLAT,)) -> str:
    return page.headline(cells.read(config, root, clusters)[0])


def test_strategies_with_the_same_time_win_together(projected):
    labels = "Strong scaling and Weak scaling and Linear rule + warmup and Linear rule"
    assert page.headline(projected).startswith(f"**Fastest: {labels} on 1 device, 100 s to the target** (reached by 3 of 3")


@pytest.mark.parametrize(
    ("seeds", "slower", "certainty"),
    [
        (6, 6, "(not significant: sign test, p = 0.094 by Holm's correction for 3 pairs"),  # 3 · 2 / 64, of three cells
        (8, 8, "(significant: sign test, p = 0.023 "),  # 3 · 2 / 256
        (6, 5, "(not significant: "),
    ],
)
def test_the_winner_stands_beside_the_next_strategy_over_common_seeds(timed, seeds, slower, certainty):
    config = replace(TWO, seeds=tuple(range(seeds)))
    for seed in config.seeds:
        sweeps.reach(config, timed, RunKey("strong", 1, seed), 40)
        sweeps.reach(config, timed, RunKey("strong", 2, seed), 10)  # 218 s
        sweeps.reach(config, timed, RunKey("weak", 2, seed), 20 if seed < slower else 10)  # 260 or 130 s
    text = headline_of(config, timed)
    assert "**Fastest: Strong scaling on 2 devices, 218 s to the target, 1.83 times as fast as one device**" in text
    assert "projected to Flat, with steps of cpu" in text
    assert "Next: Weak scaling on 2 devices, 260 " in text
    assert f"slower in {slower} of {seeds} seeds {certainty}" in text
    found = cells.read(config, timed, [FLAT])[0]
    assert page.cautions(found) == []
    assert "95 % probability at least. –" in page.cell_table(found)


def test_a_winner_that_missed_in_one_seed_says_so_and_seeds_apart_are_not_compared(timed):
    sweeps.add(TWO, timed, RunKey("strong", 1, 0), "max_epochs", 9, 0.01)
    assert headline_of(TWO, timed).startswith("**No strategy's median run reached the target** validation loss of 0.0016384")
    for seed in (1, 2):
        sweeps.reach(TWO, timed, RunKey("weak", 2, seed), 40)
    sweeps.add(TWO, timed, RunKey("weak", 2, 0), "diverged", 1, math.nan)
    assert "520 (520 to ∞) s to the target** (reached by 2 of 3 seeds" in headline_of(TWO, timed)
    sweeps.reach(replace(TWO, seeds=(5,)), timed, RunKey("strong", 2, 5), 100)
    assert headline_of(replace(TWO, seeds=(0, 1, 2, 5)), timed).endswith("Next: Strong scaling on 2 devices, 2180 s.")


@pytest.mark.parametrize(("mode", "said"), [("virtual", "leaves its cell without a time"), ("measured", "infinite time")])
def test_runs_that_the_time_limit_stopped_are_told_apart_from_crashed_ones(tmp_path, mode, said):
    config = replace(TWO, mode=mode)
    sweeps.reach(config, tmp_path, RunKey("strong", 1, 0), 10)
    sweeps.add(config, tmp_path, RunKey("weak", 2, 0), "timed_out")
    sweeps.add(config, tmp_path, RunKey("weak", 2, 1), "crashed")
    text = written(config, tmp_path)
    for words in (said, "weak-n2-seed0 (timed", "weak-n2-seed1 (crashed", "1 stopped by the time limit"):
        assert words in text


def test_scattered_and_failed_step_times_are_told(projected):
    (calm,) = projected.timings
    busy = calm._replace(
        train=[row._replace(high_s=2.5 * row.median_s) for row in calm.train], failed={"training of 64": "why"}
    )
    texts = " ".join(page.cautions(projected._replace(timings=[busy])))
    assert "quartiles up to 150 % from their medians" in texts
    assert "1 devices, training of 64: why" in texts


def test_a_clipped_batch_is_marked_and_explained_and_no_other(tmp_path):
    """Weak scaling has 512 samples. It gets what it asks for on 16 devices, and half of it on 32."""
    config = replace(GRID, scaling=("strong", "weak"), devices=(1, 16, 32), seeds=(0,))
    sweeps.add_step_times(tmp_path, 1, {1: 0.1, 2: 0.1, 16: 0.3, 32: 0.5}, {8: 0.1, 16: 0.2, 256: 2.0})
    for n in config.devices:
        for scaling in config.scaling:
            sweeps.reach(config, tmp_path, RunKey(scaling, n, 0), 10)
    text = page.cell_table(cells.read(config, tmp_path, [FLAT])[0])
    assert [place for place in rows_of(text, "**Table 1. ") if "†" in place[1]] == [("weak", "32†")]
    assert "† Batch capped at 512 of 512 training samples, 16 times the base batch." in text


def test_runs_csv_has_a_row_for_each_computed_run(projected):
    rows = list(csv.DictReader(io.StringIO(csv_files.runs_csv(projected))))
    assert len(rows) == 35  # of 36, one has no record
    by_cell = {(row["scaling"], row["devices"], row["seed"]): row for row in rows}
    strong = by_cell["strong", "2", "0"]
    assert float(strong["time_to_target_s"]) == pytest.approx(218)
    assert (strong["projected"], strong["path"], strong["device_batch"]) == ("True", "strong-n1-seed0", "16")
    assert (strong["steps"], strong["machine"], strong["git_commit"]) == ("160", "a processor, 2 cores", "8d988e1")
    assert strong["mode"] == "virtual"
    missed = by_cell["linear", "4", "0"]
    assert (missed["outcome"], missed["time_to_target_s"], missed["final_val_loss"]) == ("diverged", "", "nan")
    assert by_cell["linear-warmup", "4", "1"]["outcome"] == "crashed"


# Throughput


def test_throughput_has_medians_quartiles_rates_and_efficiencies(tmp_path):
    config = SweepConfig(mode="throughput", devices=(1, 4, 8), timing=TimingConfig(device_batches=(16,), global_batches=(32,)))
    assert "No step time is measured yet." in written(config, tmp_path, [])
    for n, strong in ((1, 0.036), (4, 0.016)):
        times = {16 * n: 1e-3 * (20 + n), 32: strong}
        sweeps.add_step_times(tmp_path, n, times, oversubscribed=n > 1, failed={"training of 64": "out of memory"})
    text = written(config, tmp_path, [])
    rows = rows_of(text, "**Table 1. ")
    assert rows["strong, batch 32", "4"] == ("32", "16 (14.4 to 17.6)", "2000", "56.25")  # 100 · 36 / (4 · 16)
    assert rows["weak, 16 a device", "4"] == ("64", "24 (21.6 to 26.4)", "2667", "87.50")  # 100 · 21 / 24
    assert "Not measured yet on these numbers of devices: 8." in text
    assert "4 devices, training of 64: out of memory" in text
    assert text.count("does not measure scaling") == 3  # in the titles
    assert (tmp_path / "report" / "figures" / "throughput.svg").exists()
    assert not (tmp_path / "report" / "runs.csv").exists()
    (tmp_path / "step_times" / "step-times-n1.json").unlink()
    assert rows_of(written(config, tmp_path, []), "**Table 1. ")["strong, batch 32", "4"][-1] == "–"
    with pytest.raises(InputError, match=r"--plan needs a sweep that trains to a target; got .* leave it out"):
        page.write(config, tmp_path, [], tmp_path / "plan.json")
