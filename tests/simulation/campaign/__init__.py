"""Many seeds of the cluster's simulation, in worker processes: `make simulate SEEDS=1000`."""
