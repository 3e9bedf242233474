"""What follows from numbers alone: scaling laws, their fits, efficiencies over seeds."""
