"""`ottla restore` and `ottla backup`."""
