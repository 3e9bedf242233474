"""The same cells as a cluster's jobs, through submitit."""
