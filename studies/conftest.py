"""A workload's file adds arms where it is imported, so the search for doctests leaves it alone."""

collect_ignore = ["nodules_arms.py"]
