"""The machine and its files: errors, locks, environment, signals, versions; it knows no configuration and no JAX."""
