"""Insertion of nodules into whole chest scans, with the annotations for training a detector."""
