"""A program with its own session, written from Spark's documentation alone: without `new_session`.

`python -m tests.spark.plain_driver '{"settings": {…}, "servers": …, "topic": …, "sink": …, "directory": …,
"register": false, "steps": ["read", …]}'` prints one line of JSON: for each step its result, or
`{"failed": the text of the exception}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


class Steps:
    def __init__(self, spark: SparkSession, plan: dict[str, Any]) -> None:
        self._spark = spark
        self._plan = plan
        self._options = {"kafka.bootstrap.servers": plan["servers"], "startingOffsets": "earliest"}

    def _read(self, **options: str) -> DataFrame:
        chosen = {**self._options, "subscribe": self._plan["topic"], **options}
        return self._spark.read.format("ottla").options(**chosen).load()

    def _copy(self, name: str, **options: str) -> None:
        self._start(name, **options).awaitTermination()

    def _start(self, name: str, **options: str) -> StreamingQuery:
        chosen = {**self._options, "subscribe": self._plan["topic"], **options}
        rows = self._spark.readStream.format("ottla").options(**chosen).load()
        writer = rows.select("key", "value").writeStream.format("ottla").options(**self._options)
        writer = writer.option("topic", self._plan["sink"]).trigger(availableNow=True)
        return writer.option("checkpointLocation", f"{self._plan['directory']}/{name}").start()

    def read(self) -> int:
        return self._read().count()

    def filter(self) -> list[int]:
        return [row["offset"] for row in self._read().where("offset >= 7").collect()]

    def filter_pushed(self) -> list[int]:
        self._spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            return self.filter()
        finally:
            self._spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    def write(self) -> None:
        rows = self._spark.range(3).selectExpr("string(id) AS value")
        rows.write.format("ottla").options(**self._options).option("topic", self._plan["sink"]).mode("append").save()

    def stream(self) -> None:
        self._copy("stream")

    def streams_at_once(self) -> None:
        for query in [self._start(f"at-once-{number}") for number in range(3)]:
            query.awaitTermination()

    def unknown_topic(self) -> int:
        return self._read(subscribe="there-is-none").count()

    def misspelt_option(self) -> int:
        return self._read(startingOffset="earliest").count()

    def unknown_column(self) -> int:
        reader = self._spark.read.format("ottla").options(**self._options).option("subscribe", self._plan["topic"])
        return reader.schema("ofset long").load().count()

    def stream_of_unknown_topic(self) -> None:
        self._copy("unknown", subscribe="there-is-none")

    def stream_with_an_end(self) -> None:
        self._copy("end", endingOffsets="latest")

    def misspelt_option_of_sink(self) -> None:
        rows = self._spark.range(3).selectExpr("string(id) AS value")
        options = {**self._options, "topics": self._plan["sink"]}
        rows.write.format("ottla").options(**options).mode("append").save()

    def invalid_topic_of_sink(self) -> None:
        rows = self._spark.range(3).selectExpr("string(id) AS value")
        rows.write.format("ottla").options(**self._options).option("topic", "a/b").mode("append").save()


def main() -> None:
    plan = json.loads(sys.argv[1])
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    for name, value in plan["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if plan.get("register"):
        from ottla.spark.registration import register

        register(spark)
    steps = Steps(spark, plan)
    told = {name: _told(getattr(steps, name)) for name in plan["steps"]}
    spark.stop()
    print(json.dumps(told))


def _told(step: Callable[[], Any]) -> Any:
    try:
        return step()
    except Exception as failure:
        if not isinstance(failure, PySparkException) and type(failure).__name__ != "Py4JJavaError":
            raise
        return {"failed": str(failure)}


if __name__ == "__main__":
    main()
