"""The environment variables that Spark's stream readers set in their shared map exist before the readers start."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.streaming.query import StreamingQuery

from ottla.spark.reader_environment import NAMES, SOURCE, settle_reader_environment
from ottla.testing import Cluster
from tests.spark.topics import NewTopic, finish_all, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def environment(spark: SparkSession) -> dict[str, str]:
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    return dict(sources.lookupDataSource(SOURCE).dataSourceCls().envVars())


def test_readers_that_start_side_by_side_find_their_names_there(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Otherwise each reader would add entries to a map without a lock. They do set the values, so it is that map."""
    before = environment(spark)
    assert set(NAMES) <= set(before)
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, [b"a", b"b"])

    def start(name: str) -> StreamingQuery:
        reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        rows = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        return writer.trigger(availableNow=True).start()

    finish_all([partial(start, name) for name in ("one", "two", "three")])
    after = environment(spark)
    assert set(after) == set(before)
    assert after["SPARK_LOCAL_DIRS"] != NAMES["SPARK_LOCAL_DIRS"]
    settle_reader_environment(spark)
    assert environment(spark) == after, "what readers have set stays"


def test_another_spark_is_left_as_it_is() -> None:
    """One without a JVM here, or with other internals."""
    settle_reader_environment(object())  # type: ignore[arg-type] # not one of Ottla's sessions
