"""A size of a data set: its runs, and the table of the results."""

from experiments import size, tables
from experiments.outcomes import RESULTS


def test_the_runs_of_a_size_and_the_table_of_the_results(tmp_path):
    config = size.DATA["images"].config("images", 60, tmp_path)
    found = [(scaling, devices) for scaling, devices, _ in size.paths(config, [0])]
    assert found == [("strong", 1), ("quarter", 1)]
    config = size.DATA["slices"].config("slices", 500, tmp_path, tmp_path)
    assert (config.settings.slices, config.stop.monitor) == (500, "dice")
    head, *lines = size.summary(tables.read(RESULTS / "study" / "size" / "images.csv"))
    assert [line[0] for line in lines] == ["480", "960", "1920", "3840"]
    assert float(dict(zip(head, lines[0], strict=True))["Bn"]) > 0
