"""Scaling strategies, learning-rate schedules, batches, and the model of a step's time."""
