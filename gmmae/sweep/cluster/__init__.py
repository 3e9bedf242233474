"""Runs the jobs of a sweep on a Slurm cluster, through submitit."""
