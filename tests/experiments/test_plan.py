"""The comparison of plans with true results gives the committed figures."""

from experiments import plan, tables


def test_the_figures_of_a_workload_are_those_of_the_results():
    found = plan.summary([case for case in plan.read() if case.workload == "adrenal"])
    head, *rows = [row for row in found if row[1] != "all"]
    wanted = [row for row in tables.read(plan.PLACE / "summary.csv") if row["of"] == "adrenal"]
    assert [dict(zip(head, row, strict=True)) for row in rows] == wanted
