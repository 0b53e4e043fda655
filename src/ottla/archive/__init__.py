"""The archive of topics: its manifest, its files, and a reader, without Spark."""
