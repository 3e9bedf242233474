"""Many runs: the grid of strategies, devices and seeds, and what is missing of it computed."""
