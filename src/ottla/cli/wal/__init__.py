"""`ottla wal`."""
