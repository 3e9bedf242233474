"""Nodules put into whole chest scans, with all that a detector's training needs to know of them."""
