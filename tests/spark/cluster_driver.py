"""A driver on a cluster, to be killed: several queries copy one topic, each through a sink of its own, until all is
there. A process of its own.

`python -m tests.spark.cluster_driver '{"master": …, "servers": …, "source": …, "queries": [{"sink": …, "format": …,
"checkpoint": …, "batch_rows": 100, "tasks": 3, "options": {}}, …]}'`

A query with `tasks` shuffles its rows first, round robin: another number of tasks has other rows in each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ottla.spark.session import new_session
from tests.spark.dying_sinks import DyingSource, NaiveSource
from tests.spark.standalone import SETTINGS
from tests.spark.topics import SLOW_START, STARTS_MAX

POLL_S = 0.2


def main() -> None:
    plan = json.loads(sys.argv[1])
    spark = new_session("killed", master=plan["master"], settings=SETTINGS)
    spark.dataSource.register(DyingSource)
    spark.dataSource.register(NaiveSource)
    run_all([partial(start, spark, plan, each) for each in plan["queries"]])
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


def run_all(starts: list[Callable[[], StreamingQuery]]) -> None:
    """Until all have done what was there when they began. Raises what one of them failed with."""
    running = [(begin, begin(), 1) for begin in starts]
    while running:
        still = []
        for begin, query, times in running:
            if query.isActive:
                still.append((begin, query, times))
            elif (failure := query.exception()) is not None:
                if SLOW_START not in str(failure) or times == STARTS_MAX:
                    raise failure
                still.append((begin, begin(), times + 1))
        running = still
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
