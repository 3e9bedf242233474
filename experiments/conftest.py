"""Files without doctests: one adds strategies when it is imported, the others need other frameworks."""

collect_ignore = ["nodules_arms.py", "minimal"]
