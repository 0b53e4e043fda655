"""`ottla pipeline`: jobs on Spark."""
