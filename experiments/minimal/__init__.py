"""Minimal programs that divide a batch among processes in other frameworks. Marked lines serve only that."""
