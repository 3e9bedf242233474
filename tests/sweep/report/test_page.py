from dataclasses import replace

import pytest

from gmmae.config.schema import changed
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.report import page
from gmmae.system.errors import InputError
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS

ONE_SEED = replace(GRID, seeds=(0,))


def written(config, root, clusters=(FLAT,)):
    page.write(config, root, list(clusters))
    return (root / "report" / "report.md").read_text(encoding="utf-8")


def test_a_sweep_becomes_pages_tables_figures_and_a_board(tmp_path):
    sweeps.small(tmp_path)
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    fast = replace(FLAT, name="Fast", reference_step_s=0.25)
    paths = page.write(GRID, tmp_path, [FLAT, fast])
    place = tmp_path / "report"
    assert paths == [place / "report.html", place / "report.md", tmp_path / "tb"]
    made = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    names = [f"table_{i}" for i in range(1, 9)]
    assert made == {
        "report.html",
        "report.md",
        "runs.csv",
        *(f"tables/{name}.{ending}" for name in names for ending in ("csv", "md")),
        *(f"figures/figure_{number}.{ending}" for number in range(2, 6) for ending in ("png", "svg")),
    }
    text = (place / "report.md").read_text(encoding="utf-8")
    assert text.startswith(f"# Scaling strategies compared: {tmp_path.name}".replace("_", r"\_"))
    open_parts = ["# Scaling", "**Fastest: ", "![Fig. 2]", "**Table III.", "**Caution**", "**Failed processes**"]
    parts = [*open_parts, "<h2>Tables", "**Table I.", "<h2>Figures"]
    assert sorted(parts, key=text.index) == [*parts]
    assert "<details>" not in text[: text.index("<h2>Tables") - len("<details>\n<summary>")]
    assert text.count("<details>") == text.count("</details>") == 3
    assert "**35 of 36 runs are computed.**" in text
    assert "**Failed processes**, which count nowhere: `linear-warmup-n4-seed1` crashed" in text
    assert "Device: cpu. Versions: jax 0.10.2, python 3.11.9. Commit: 8d988e1." in text
    assert "](figures/figure_2.png)" in text
    html = (place / "report.html").read_text(encoding="utf-8")
    assert "figures/" not in html  # it needs nothing but itself
    assert html.count("data:image/") == 4


def test_a_half_finished_sweep_without_step_times_is_told_as_far_as_it_is(tmp_path):
    sweeps.reach(ONE_SEED, tmp_path, RunKey("strong", 1, 0), 3)
    text = written(ONE_SEED, tmp_path)
    assert "**1 of 12 runs are computed.**" in text
    assert "**Which strategy is the fastest is unknown.** Times cannot be projected (step times" in text
    assert "Times cannot be projected (step times have not been measured yet)" in text
    assert "Fig. 3 is left out" in text
    assert "<h2>Tables</h2>" not in text  # there is none


def test_nothing_computed_is_a_report_too_and_stale_files_vanish(tmp_path):
    stale = tmp_path / "report" / "figures" / "figure_9.png"
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    assert page.write(ONE_SEED, tmp_path, [FLAT]) == [tmp_path / "report" / name for name in ("report.html", "report.md")]
    assert not stale.exists()
    assert "No run is computed yet." in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_the_first_cluster_that_can_be_projected_to_is_shown_and_the_other_explained(tmp_path):
    sweeps.reach(ONE_SEED, tmp_path, RunKey("strong", 1, 0), 3)
    sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)
    odd = replace(FLAT, name="Odd", reference_step_s=1.0, reference_batch=64)
    text = written(ONE_SEED, tmp_path, [odd, FLAT])
    assert "projected to Flat" in text.splitlines()[0]
    assert "Times cannot be projected (Odd: device batch must be measured, from 8 to 32; got 64" in text


def test_a_sweep_without_a_target_has_a_report(tmp_path):
    config = replace(ONE_SEED, run=changed(ONE_SEED.run, stop__target=None))
    sweeps.add(config, tmp_path, RunKey("strong", 2, 0), "max_epochs", 4)
    text = written(config, tmp_path)
    assert "**No target was set**" in text
    assert "Fig. 2 is left out: there are no times to the target." in text


def test_throughput_has_a_report_of_its_own(tmp_path):
    config = SweepConfig(mode="throughput", devices=(1, 2))
    for n in (1, 2):
        sweeps.add_step_times(tmp_path, n, {32: 0.04 / n, 32 * n: 0.04})
    text = written(config, tmp_path, [])
    assert "Mode throughput: step times only" in text
    assert "| 16 | 2 | 32 | 20 | 18 to 22 | 1600 | 100.00 |" in text
    assert not (tmp_path / "report" / "runs.csv").exists()


def test_a_broken_record_is_named_and_the_old_report_stays(tmp_path):
    written(ONE_SEED, tmp_path)
    record = tmp_path / "records" / "strong-n1-seed0.json"
    record.parent.mkdir()
    record.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"strong-n1-seed0\.json must be a run's record"):
        page.write(ONE_SEED, tmp_path, [FLAT])
    assert (tmp_path / "report" / "report.md").exists()
