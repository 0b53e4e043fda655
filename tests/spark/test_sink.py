"""`df.write` and `df.writeStream` with `format("ottla")`, through Spark to a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as sf

from ottla.client.producer.partitioner import murmur2_partitioner
from ottla.testing import Cluster
from tests.spark.dying_sinks import FailingOnceSource
from tests.spark.topics import NewTopic, finish, produce, read_committed, values_of, with_admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Write = Callable[..., None]


@pytest.fixture
def write(cluster: Cluster) -> Write:
    """`write(frame, topic, ottla__delivery="at-least-once")`."""

    def save(frame: DataFrame, topic: str | None = None, mode: str = "append", **options: object) -> None:
        writer = frame.write.format("ottla").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        if topic is not None:
            writer = writer.option("topic", topic)
        for name, value in options.items():
            writer = writer.option(name.replace("__", "."), str(value))
        writer.mode(mode).save()

    return save


def test_columns_become_records(spark: SparkSession, cluster: Cluster, new_topic: NewTopic, write: Write) -> None:
    one, two = new_topic(3), new_topic(3)
    frame = spark.range(90).select(
        sf.when(sf.col("id") % 3 == 0, sf.lit(one)).otherwise(sf.lit(two)).alias("topic"),
        sf.when(sf.col("id") % 5 != 0, sf.concat(sf.lit("k"), "id")).alias("key"),
        sf.when(sf.col("id") % 7 != 0, sf.encode(sf.concat(sf.lit("v"), "id"), "utf-8")).alias("value"),
        sf.when(sf.col("id") % 10 == 0, sf.lit(2)).alias("partition"),
        sf.expr("array(struct('id' AS key, encode(string(id), 'utf-8') AS value))").alias("headers"),
        sf.col("id").alias("left_out"),
    )
    write(frame)
    records = {
        int(record.headers[0][1] or b""): record
        for topic in (one, two)
        for record in read_committed(cluster.bootstrap_servers, topic)
    }
    assert sorted(records) == list(range(90))
    for number, record in records.items():
        assert record.topic == (one if number % 3 == 0 else two)
        assert record.key == (None if number % 5 == 0 else b"k%d" % number)
        assert record.value == (None if number % 7 == 0 else b"v%d" % number)
        assert record.headers == (("id", b"%d" % number),)
        if number % 10 == 0:
            assert record.partition == 2, "the column decides"
        elif record.key is not None:
            assert record.partition == murmur2_partitioner(record.key, 3), "as Java's partitioner"


def test_a_write_is_there_as_a_whole_or_not_at_all(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, write: Write
) -> None:
    topic = new_topic()
    frame = spark.range(0, 100, 1, 4).selectExpr("if(id = 99, raise_error('the last row is bad'), 'x') AS value")
    with pytest.raises(PySparkException, match="the last row is bad"):
        write(frame, topic)
    assert values_of(cluster.bootstrap_servers, topic) == []
    write(spark.range(10).selectExpr("string(id) AS value"), topic)
    assert sorted(values_of(cluster.bootstrap_servers, topic)) == [b"%d" % number for number in range(10)]


def test_a_named_write_is_done_once(spark: SparkSession, cluster: Cluster, new_topic: NewTopic, write: Write) -> None:
    topic = new_topic()
    name = {"ottla__txn__app__id": f"report-{topic}"}
    for version in (1, 1, 2):
        frame = spark.range(10).selectExpr(f"concat('{version}-', id) AS value")
        write(frame, topic, **name, ottla__txn__version=version)
    with pytest.raises(PySparkException, match="has advanced"):
        write(spark.range(10).selectExpr("'old' AS value"), topic, **name, ottla__txn__version=1)
    expected = [b"%d-%d" % (version, number) for version in (1, 2) for number in range(10)]
    assert sorted(values_of(cluster.bootstrap_servers, topic)) == expected


def test_at_least_once_has_no_transactions(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, write: Write
) -> None:
    topic, servers = new_topic(), cluster.bootstrap_servers

    def ids() -> set[str]:
        return {each.transactional_id for each in with_admin(servers, lambda admin: admin.list_transactions())}

    before = ids()
    write(spark.range(10).selectExpr("string(id) AS value"), topic, ottla__delivery="at-least-once", kafka__acks="1")
    assert len(values_of(servers, topic)) == 10
    assert ids() == before


def test_mistakes_are_told(spark: SparkSession, new_topic: NewTopic, write: Write) -> None:
    topic = new_topic()
    text = spark.range(1).selectExpr("string(id) AS value")
    cases: list[tuple[DataFrame, dict[str, Any], str]] = [
        (text, {}, "no topic to write to: set the option topic, or add a column named topic"),
        (spark.range(1), {"topic": topic}, "the sink needs a column named value; the columns are id"),
        (spark.range(1).selectExpr("id AS value"), {"topic": topic}, "column value must be of type string or binary"),
        (text.selectExpr("*", "'x' AS partition"), {"topic": topic}, "column partition must be of type int"),
        (text, {"topic": topic, "mode": "overwrite"}, "logs are append-only"),
        (text, {"topic": topic, "ottla__delivery": "twice"}, "must be one of exactly-once, at-least-once"),
        (text.selectExpr("*", "string(null) AS topic"), {}, "a row has null in the column topic"),
        (text.selectExpr("*", "7 AS partition"), {"topic": topic}, "has partitions 0 to 0, not 7"),
    ]
    for frame, options, message in cases:
        with pytest.raises(PySparkException, match=message):
            write(frame, **options)


def test_a_stream_is_there_once(spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path) -> None:
    """Every task of every batch fails at its first attempt. Also checks the properties that Spark passes to tasks."""
    source, sink, servers = new_topic(2), new_topic(2), cluster.bootstrap_servers
    produce(servers, source, [b"%03d" % number for number in range(60)], key=lambda number: b"%d" % number)
    spark.dataSource.register(FailingOnceSource)
    frame = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "40")
        .load()
    )
    writer = (
        frame.select("key", "value")
        .writeStream.format("ottla_failing_once")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", sink)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
    )
    query = finish(writer.start)
    assert sorted(values_of(servers, sink)) == [b"%03d" % number for number in range(60)]
    decisions = [json.loads(text) for text in values_of(servers, f"ottla-spark-{query.id}")]
    assert [(each["batch"], each["done"]) for each in decisions] == [(0, False), (0, True), (1, False), (1, True)]
    assert {each["run"] for each in decisions} == {str(query.runId)}
    assert all(name.endswith(":1") for each in decisions for name, *_ in each["transactions"]), "the second attempts"


def test_a_stream_at_least_once(spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path) -> None:
    sink, servers = new_topic(), cluster.bootstrap_servers
    source = new_topic()
    produce(servers, source, [b"a", b"b"])
    options = {"kafka.bootstrap.servers": servers, "subscribe": source, "startingOffsets": "earliest"}
    writer = (
        spark.readStream.format("ottla")
        .options(**options)
        .load()
        .select("value", sf.lit(sink).alias("topic"))
        .writeStream.format("ottla")
        .options(**{"kafka.bootstrap.servers": servers, "ottla.delivery": "at-least-once"})
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
    )
    query = finish(writer.start)
    assert values_of(servers, sink) == [b"a", b"b"]
    topics = with_admin(servers, lambda admin: admin.list_topics())
    assert f"ottla-spark-{query.id}" not in {each.name for each in topics}


def test_the_streams_mistakes_are_told(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    frame = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("subscribe", new_topic())
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = frame.select("offset").writeStream.format("ottla").option("checkpointLocation", str(tmp_path))
    with pytest.raises((AnalysisException, PySparkException), match=r"kafka\.bootstrap\.servers must be given"):
        finish(writer.trigger(availableNow=True).start)
