"""A driver process on a cluster that tests kill: several queries copy one topic, each through its own sink, until all
records are copied.

`python -m tests.spark.cluster_driver '{"master": …, "servers": …, "source": …, "queries": [{"sink": …, "format": …,
"checkpoint": …, "batch_rows": 100, "tasks": 3, "options": {}}, …]}'`

A query with `tasks` shuffles its rows first, round robin: the rows of each task depend on the number of tasks.
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
from tests.spark.standalone import SETTINGS
from tests.spark.topics import finish_all


def main() -> None:
    plan = json.loads(sys.argv[1])
    spark = new_session("killed", master=plan["master"], settings=SETTINGS)
    spark.dataSource.register(DyingSource)
    spark.dataSource.register(NaiveSource)
    finish_all([partial(start, spark, plan, each) for each in plan["queries"]])
    spark.stop()


def start(spark: SparkSession, plan: dict[str, Any], query: dict[str, Any]) -> StreamingQuery:
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("subscribe", plan["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(query["batch_rows"]))
        .load()
        .select("key", "value")
    )
    if query["tasks"]:
        rows = rows.repartition(query["tasks"])
    return (
        rows.writeStream.format(query["format"])
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("topic", query["sink"])
        .option("checkpointLocation", query["checkpoint"])
        .option("die.group", str(os.getpgrp()))
        .options(**query.get("options", {}))
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main()
