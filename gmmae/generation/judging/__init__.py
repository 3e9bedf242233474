"""Generated nodules against real ones: features, tests, novelty and a page."""
