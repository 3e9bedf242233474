"""From folders of scans or volumes to cubes, once, in worker processes, kept in a cache."""
