"""Experiments on real data whose results the README reports: each a program that can be stopped and goes on where it was."""
