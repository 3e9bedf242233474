"""Experiments on real data, whose results the README reports. Each program can be stopped and resumed."""
