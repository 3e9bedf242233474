"""The machine and its files. It knows no configuration and no JAX."""
