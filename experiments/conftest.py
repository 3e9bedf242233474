"""Files without doctests: one adds strategies when it is imported."""

collect_ignore = ["nodules_arms.py"]
