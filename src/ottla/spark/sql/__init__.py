"""Streaming SQL over topics, on Spark Structured Streaming, as run by `ottla sql`.

`tokens`, `statements`, `parser`, `inference` and `avro_schema` are pure. `catalog` stores definitions in a directory.
`decode`, `sources`, `plans` and `writing` use Spark. `engine` runs statements.
"""
