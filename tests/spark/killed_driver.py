"""A driver process that tests kill: copies a topic by several queries, each through a shuffle and its own sink, in
micro-batches, until all records are copied.

`python -m tests.spark.killed_driver '{"servers": …, "source": …, "tasks": 2, "batch_rows": 50,
"queries": [{"sink": …, "checkpoint": …, "format": …, "die": {}}, …]}'`
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ottla.spark.session import new_session
from tests.spark.dying_sinks import DyingSource, NaiveSource
from tests.spark.topics import finish_all


def main() -> None:
    plan = json.loads(sys.argv[1])
    spark = new_session("killed", settings={"spark.sql.shuffle.partitions": str(plan["tasks"])})
    spark.dataSource.register(DyingSource)
    spark.dataSource.register(NaiveSource)
    finish_all([partial(start, spark, plan, query) for query in plan["queries"]])


def start(spark: SparkSession, plan: dict[str, Any], query: dict[str, Any]) -> StreamingQuery:
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("subscribe", plan["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(plan["batch_rows"]))
        .load()
        .select("value")
    )
    return (
        rows.repartition(plan["tasks"])  # round robin: the rows of each task depend on the number of tasks
        .writeStream.format(query["format"])
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("topic", query["sink"])
        .option("checkpointLocation", query["checkpoint"])
        .option("die.group", str(os.getpgrp()))
        .options(**query["die"])
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main()
