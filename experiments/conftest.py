"""What the search for doctests leaves alone: a file that adds strategies where it is imported, and programs of other frameworks."""

collect_ignore = ["nodules_arms.py", "minimal"]
