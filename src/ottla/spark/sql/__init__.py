"""Streaming SQL over topics, on Spark Structured Streaming: what `ottla sql` runs.

`tokens`, `statements`, `parser`, `inference` and `avro_schema` are pure; `catalog` keeps definitions in a directory;
`decode`, `sources`, `plans` and `writing` are Spark; `engine` runs statements.
"""
