"""Plain values and what every part of the program needs of them: configuration, records, errors, clocks, files; no JAX."""
