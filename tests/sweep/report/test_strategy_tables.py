import csv
import io
from dataclasses import replace

import pytest

from gmmae.plotting import tables
from gmmae.plotting.tables import Table
from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import results, strategy_tables
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS


def there(table: Table | None) -> Table:
    assert table is not None
    return table


def made(found):
    """Every table of a report of trained runs."""
    one_each = (
        strategy_tables.strong_efficiency,
        strategy_tables.other_efficiencies,
        strategy_tables.endings,
        strategy_tables.epoch_times,
        strategy_tables.step_times,
        strategy_tables.times_to_target,
        strategy_tables.paired,
    )
    return [strategy_tables.clusters([found, found]), *(make(found) for make in one_each)]


def test_table_1_has_the_efficiencies_of_strong_scaling(projected):
    # 100 / (2 · 218) and 100 / (4 · 277); one path a seed leaves the efficiency nothing to vary.
    assert there(strategy_tables.strong_efficiency(projected)).rows == (
        ("1", "100.00", "–", "3 of 3"),
        ("2", "22.94", "–", "3 of 3"),
        ("4", "9.03", "–", "3 of 3"),
    )


def test_table_2_has_nan_where_the_median_run_missed(projected):
    table = there(strategy_tables.other_efficiencies(projected))
    # Weak: 100 / (2 · 520).
    assert table.rows[1] == ("2", "9.62 (3/3)", "NaN (1/3)", "NaN (0/3)")
    assert table.columns == ("devices", "weak (%)", "linear-warmup (%)", "linear (%)")


def test_table_3_has_the_batches_of_the_run_that_grew_the_most(projected):
    key = projected.runs[0].key
    first, second, *others = (run for run in projected.runs if run.key[:2] == key[:2])
    grown = second._replace(record=replace(second.record, growth=[(17, 64), (22, 128)], largest_batch=128, wanted_batch=256))
    found = projected._replace(runs=[first, grown, *others])
    assert there(strategy_tables.endings(found)).rows[0][2] == f"{first.record.global_batch} → 64 → 128"
    assert there(strategy_tables.endings(found)).notes[-1] == "† Batch grown to 128, where its doublings end."


def test_a_cell_without_runs_has_a_dash(tmp_path):
    config = replace(GRID, scaling=("strong", "sqrt"), devices=(1, 3), seeds=(0,))
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    for key in (RunKey("strong", 1, 0), RunKey("strong", 3, 0), RunKey("sqrt", 1, 0)):
        sweeps.reach(config, tmp_path, key, 10)
    found = results.read(config, tmp_path, FLAT)
    table = there(strategy_tables.other_efficiencies(found))
    assert table.columns == ("devices", "sqrt (%)")
    assert table.rows == (("1", "100.00 (1/1)"), ("3", "–"))


def test_table_3_says_how_runs_ended(projected):
    """Epochs of seeds that missed count as infinite."""
    rows = {row[:2]: row[2:] for row in strategy_tables.endings(projected).rows}
    assert rows["weak", "4"] == ("128", "0.00105", "3 of 3", "80", "–")
    collapsed = "collapsed 3× after epoch 12 at 0.01480 to 0.01680 (best 0.01480 to 0.01680)"
    assert rows["linear", "2"] == ("64", "0.0021", "0 of 3", "not reached", collapsed)
    assert rows["linear", "4"][-1] == "diverged 3× after epoch 1 at NaN (best 0.004000)"
    out_of_epochs = "out of epochs 1× after epoch 30 at 0.002000 (best 0.002000)"
    assert rows["linear-warmup", "4"] == ("128", "0.0042", "0 of 1", "not reached", out_of_epochs)
    assert rows["linear-warmup", "2"][2:4] == ("1 of 3", "not reached (10 to not reached)")


def test_kinds_of_misses_are_kept_apart_and_unknown_losses_are_called_so(tmp_path):
    config = replace(GRID, scaling=("strong",), devices=(1,))
    for seed, outcome in enumerate(("time_limit", "stalled")):
        sweeps.add(config, tmp_path, RunKey("strong", 1, seed), outcome, 7, 0.003, best_val_loss=None)
    [row] = strategy_tables.endings(results.read(config, tmp_path, None)).rows
    how = "1× after epoch 7 at 0.003000 (best unknown)"
    assert row[-1] == f"plateaued {how}; time limit {how}"


def test_strong_scaling_is_compared_seed_by_seed(projected):
    rows = {row[:2]: row[2:] for row in there(strategy_tables.paired(projected)).rows}
    # 520 s / 218 s. Six rows have a p, and 6 · 0.25 is more than 1.
    assert rows["weak", "2"] == ("3", "3", "0", "0", "0", "2.39", "2.39 to 2.39", "0.25", "1")
    # 130 s of the one seed that reached it, against 218 s.
    assert rows["linear-warmup", "2"][:3] == ("3", "2", "1")
    assert rows["linear-warmup", "4"][0] == "1"


def test_strong_runs_that_are_one_run_are_called_so(projected, tmp_path):
    for made in (strategy_tables.strong_efficiency, strategy_tables.endings, strategy_tables.times_to_target):
        assert strategy_tables.SHARED_NOTE in there(made(projected)).notes
    measured = replace(GRID, mode="measured", devices=(1, 2))
    for n in (1, 2):
        sweeps.add(measured, tmp_path / "measured", RunKey("strong", n, 0), "target_reached", 10)
    assert strategy_tables.SHARED_NOTE not in strategy_tables.endings(results.read(measured, tmp_path / "measured", None)).notes


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        (2, "No intervals: they need 3 seeds."),
        (3, "from 6 seeds on. The whole range of 3 holds it with a probability of 75 %."),
        (5, "with a probability of 93.8 %."),
        (6, "with 95 % probability at least."),
    ],
)
def test_an_interval_is_called_what_its_seeds_make_it(tmp_path, seeds, expected):
    config = replace(GRID, scaling=("strong", "weak"), devices=(1, 2), seeds=tuple(range(seeds)))
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    for seed in config.seeds:
        for scaling in config.scaling:
            for n in config.devices:
                sweeps.reach(config, tmp_path, RunKey(scaling, n, seed), 10 + seed)
    found = results.read(config, tmp_path, FLAT)
    for made in (strategy_tables.strong_efficiency, strategy_tables.times_to_target, strategy_tables.paired):
        assert any(expected in note for note in there(made(found)).notes)


CLIPPED = "† Batch capped to the 512 training samples. Where the learning rate scales with the batch, k = 512 / 32 = 16."


def test_every_table_marks_the_runs_whose_batch_is_clipped_and_no_other(tmp_path):
    """Weak scaling has 512 samples. It gets what it asks for on 16 devices, and half of it on 32."""
    config = replace(GRID, scaling=("strong", "weak"), devices=(1, 16, 32), seeds=(0,))
    sweeps.add_step_times(tmp_path, 1, {1: 0.1, 2: 0.1, 16: 0.3, 32: 0.5}, {8: 0.1, 16: 0.2, 256: 2.0})
    for n in config.devices:
        sweeps.reach(config, tmp_path, RunKey("strong", n, 0), 10)
        sweeps.reach(config, tmp_path, RunKey("weak", n, 0), 20)
    found = results.read(config, tmp_path, FLAT)
    strong = there(strategy_tables.strong_efficiency(found))
    assert [row[0] for row in strong.rows] == ["1", "16", "32"]
    assert CLIPPED not in strong.notes
    weak = there(strategy_tables.other_efficiencies(found))
    assert ["†" in row[1] for row in weak.rows] == [False, False, True]
    assert weak.notes[-1] == CLIPPED
    for make in (strategy_tables.endings, strategy_tables.epoch_times, strategy_tables.times_to_target, strategy_tables.paired):
        table = there(make(found))
        assert {row[:2] for row in table.rows if "†" in row[1]} == {("weak", "32†")}, table.name
        assert table.notes[-1] == CLIPPED
        assert CLIPPED in tables.markdown(table)
        assert "32†" in tables.markdown(table)
        assert "32†" in tables.csv_text(table)
    rows = list(csv.DictReader(io.StringIO(strategy_tables.runs_csv(found))))
    assert [row["wanted_batch"] for row in rows if row["scaling"] == "weak"] == ["32", "512", "1024"]
    assert [row["global_batch"] for row in rows if row["scaling"] == "weak"] == ["32", "512", "512"]


def test_table_4_compares_clusters_that_can_be_projected_to(projected):
    fast = results.read(GRID, projected.folder.root, replace(FLAT, name="Fast", reference_step_s=0.25))
    table = there(strategy_tables.clusters([projected, fast]))
    # Twice as fast in all but the 16 s of all-reduce: 16 + 0.5 · 5.8 = 18.9 s an epoch on 2 devices, 5 s on one.
    assert table.columns == ("devices", "Flat: time (s)", "efficiency (%)", "Fast: time (s)", "efficiency (%)")
    assert table.rows[1] == ("2", "218", "22.94", "189", "13.23")
    assert strategy_tables.clusters([projected]) is None
    assert strategy_tables.clusters([projected, results.read(GRID, projected.folder.root, None)]) is None


def test_an_epoch_is_shown_in_its_parts(projected):
    rows = {row[:2]: row[2:] for row in there(strategy_tables.epoch_times(projected)).rows}
    assert rows["strong", "2"] == ("16", "16", "4.80", "16.0", "1.00", "21.8")
    assert rows["weak", "4"] == ("4", "32", "2.00", "6.00", "0.500", "8.50")


def test_misses_have_no_interval_and_mixed_seeds_one_that_is_open(projected):
    rows = {row[:2]: row[2:] for row in there(strategy_tables.times_to_target(projected)).rows}
    assert rows["linear", "2"] == ("0 of 3", "not reached", "–", "NaN", "–")
    assert rows["linear-warmup", "2"][:3] == ("1 of 3", "not reached", "130 to not reached")


def test_projected_tables_say_so_and_every_table_can_be_written(projected):
    for table in map(there, made(projected)):
        assert tables.markdown(table)
        assert tables.csv_text(table)
        if table.name not in ("table_3", "table_6"):  # how runs ended, and what has been measured
            assert "projected" in table.title
            assert any("α = 0 µs" in note for note in table.notes), table.name


def test_without_times_the_tables_of_times_are_left_out(tmp_path):
    found = results.read(sweeps.small(tmp_path), tmp_path, FLAT)
    assert [table.name for table in made(found) if table is not None] == ["table_3"]


def test_runs_csv_has_a_row_for_each_computed_run(projected):
    rows = list(csv.DictReader(io.StringIO(strategy_tables.runs_csv(projected))))
    assert len(rows) == 35  # of 36, one has no record
    by_cell = {(row["scaling"], row["devices"], row["seed"]): row for row in rows}
    strong = by_cell["strong", "2", "0"]
    assert float(strong["time_to_target_s"]) == pytest.approx(218)
    assert (strong["projected"], strong["path"], strong["device_batch"]) == ("True", "strong-n1-seed0", "16")
    record = next(run.record for run in projected.runs if run.key == ("strong", 2, 0))
    assert int(strong["steps"]) == record.epochs * record.steps_per_epoch
    assert (strong["machine"], strong["git_commit"]) == ("a processor, 2 cores", "8d988e1")
    assert float(strong["train_s"]) == record.clocks["train_s"]
    missed = by_cell["linear", "4", "0"]
    assert (missed["outcome"], missed["time_to_target_s"], missed["final_val_loss"]) == ("diverged", "", "nan")
    crashed = by_cell["linear-warmup", "4", "1"]
    assert (crashed["outcome"], crashed["epochs"], crashed["mode"]) == ("crashed", "", "virtual")
