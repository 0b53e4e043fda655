"""`ottla connect`."""
