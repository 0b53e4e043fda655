"""Spark looks for packages named `pyspark_*`: with this one installed, `format("ottla")` needs no registration."""

from ottla.spark.data_source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
