"""One run: from a configuration and a workload to a record, on any number of devices."""
