"""A driver to be killed: copies a topic, in micro-batches, through a shuffle, until all is there. A process of its own.

`python -m tests.spark.killed_driver '{"servers": …, "source": …, "sink": …, "checkpoint": …, "format": …, "tasks": 2}'`
"""

from __future__ import annotations

import json
import os
import sys

from ottla.spark.session import new_session
from tests.spark.dying_sinks import DyingSource, NaiveSource
from tests.spark.topics import finish


def main() -> None:
    plan = json.loads(sys.argv[1])
    spark = new_session("killed", settings={"spark.sql.shuffle.partitions": str(plan["tasks"])})
    spark.dataSource.register(DyingSource)
    spark.dataSource.register(NaiveSource)
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("subscribe", plan["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(plan["batch_rows"]))
        .load()
        .select("value")
    )
    writer = (
        rows.repartition(plan["tasks"])  # round robin: another number of tasks has other rows in each
        .writeStream.format(plan["format"])
        .option("kafka.bootstrap.servers", plan["servers"])
        .option("topic", plan["sink"])
        .option("checkpointLocation", plan["checkpoint"])
        .option("die.group", str(os.getpgrp()))
        .options(**plan.get("die", {}))
        .trigger(availableNow=True)
    )
    finish(writer.start)


if __name__ == "__main__":
    main()
