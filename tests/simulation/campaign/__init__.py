"""Runs many seeds of the cluster simulation in worker processes: `make simulate SEEDS=1000`."""
