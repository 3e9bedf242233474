"""Extraction of cubes from folders of scans or volumes, in worker processes, into a cache."""
