"""Clicks to page views as a declarative pipeline: Spark maintains the tables, and a sink writes them to a topic.

Spark finds the source and the sink where Ottla is installed: no register() call is needed.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

SERVERS = os.environ.get("OTTLA_BOOTSTRAP", "127.0.0.1:9092")


@dp.table
def page_clicks() -> DataFrame:
    spark = SparkSession.active()
    records = spark.readStream.format("ottla").option("kafka.bootstrap.servers", SERVERS)
    values = records.option("subscribe", "clicks").option("startingOffsets", "earliest").load()
    clicks = values.select(
        sf.from_json(sf.col("value").cast("string"), "user STRING, page STRING, ts TIMESTAMP").alias("c")
    )
    return clicks.selectExpr("c.user", "split(c.page, '[?]')[0] AS page", "c.ts")


@dp.materialized_view
def page_views() -> DataFrame:
    return SparkSession.active().read.table("page_clicks").groupBy("page").count()


dp.create_sink("clicks_by_page", "ottla", {"kafka.bootstrap.servers": SERVERS, "topic": "page-clicks"})


@dp.append_flow(target="clicks_by_page")
def write_clicks() -> DataFrame:
    clicks = SparkSession.active().readStream.table("page_clicks")
    return clicks.select(sf.col("page").alias("key"), sf.to_json(sf.struct("user", "page", "ts")).alias("value"))
