"""The report of a sweep: cells, statistics, figures, one page and TensorBoard."""
