"""`gmmae classify`: classifiers of what a model finds in volumes, beside published results."""
