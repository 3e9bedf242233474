"""Networks and mixtures: pure functions from parameters and volumes to densities, and the losses between densities."""
