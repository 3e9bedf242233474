"""Classifiers of what a model finds in volumes, beside published results."""
