"""A trained model in one file that needs JAX alone, with its loader."""
