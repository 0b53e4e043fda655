"""A broker without a cluster: its metadata is in a catalog on its own disk."""
