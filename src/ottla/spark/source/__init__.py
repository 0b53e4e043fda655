"""Topics as a Spark source, in batches and streams."""
