"""Insertion of nodules into whole chest scans, with the annotations that training a detector needs."""
