"""Gaussian-mixture autoencoders for small 3-D data sets, trained data-parallel."""
