"""A trained model in one file that needs JAX alone, and the loader that lies in it."""
