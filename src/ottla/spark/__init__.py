"""The data pipeline on Spark, through PySpark: a source, a sink, and the jobs built on them.

Spark finds `spark.read.format("ottla")` and `df.write.format("ottla")` without registration if its Python has this
package. In a session that does not find them, call `ottla.spark.registration.register(spark)`.
"""
