"""The JVM under a Spark session: where it is, and how it starts fast and quietly."""
