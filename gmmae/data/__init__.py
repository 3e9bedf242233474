"""Samples: from whatever source to training and validation volumes, and who gets which in an epoch."""
