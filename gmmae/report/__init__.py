"""From a sweep's work directory to its report."""
