"""Many runs: the grid of arms, devices and seeds, and what is missing of it computed."""
