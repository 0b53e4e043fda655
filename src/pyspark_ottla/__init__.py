"""Makes `format("ottla")` available without registration: Spark searches for packages named `pyspark_*`."""

from ottla.spark.data_source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
