"""Several processes and hosts that train together, and processes that are watched from outside."""
