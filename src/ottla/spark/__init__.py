"""The data pipeline on Spark, through PySpark: a source, a sink and the jobs that are built on them.

`spark.read.format("ottla")` and `df.write.format("ottla")` are found by themselves where this package is installed.
"""
