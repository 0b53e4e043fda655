"""The source returns the same rows as Spark's own Kafka connector on the same topics of Ottla and of Apache Kafka, and
the sink writes the same records. Both formats run in one session."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.bench.suite.kafka_cluster import KafkaCluster
from ottla.bench.suite.kafka_jars import KafkaUnavailableError
from ottla.bench.suite.maven import MavenUnavailableError
from ottla.client import Producer
from ottla.testing import Cluster
from tests.spark.topics import finish, produce_transaction, read_committed, with_admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.client import ConsumerRecord

THEIRS, OURS = "kafka", "ottla"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000
ROWS_A_CODEC = 30
PARTITIONS = 3
TOPIC, STAMPED, TRANSACTIONS = "compared", "compared-stamped", "transactions"


@pytest.fixture(scope="module", params=["ottla", "kafka"])
def servers(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    connector: str | MavenUnavailableError,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """One broker with all topics of this module."""
    if isinstance(connector, MavenUnavailableError):
        pytest.skip(f"Spark's Kafka connector is not here: {connector}")
    if request.param == "ottla":
        with Cluster() as cluster:
            fill(cluster.bootstrap_servers)
            yield cluster.bootstrap_servers
        return
    try:
        kafka = KafkaCluster(tmp_path_factory.mktemp("kafka") / "data", 1, heap_mb=256, config={})
    except KafkaUnavailableError as reason:
        pytest.skip(f"Apache Kafka is not here: {reason}")
    with kafka:
        fill(kafka.bootstrap)
        yield kafka.bootstrap


def fill(servers: str) -> None:
    create(servers, TOPIC)
    create(servers, STAMPED, {"message.timestamp.type": "LogAppendTime"})
    create(servers, TRANSACTIONS)
    asyncio.run(write_all_kinds(servers))
    for partition in range(PARTITIONS):
        for number, commit in enumerate((True, False, True, False)):
            values = [b"%d-%d-%d" % (partition, number, row) for row in range(5)]
            produce_transaction(servers, TRANSACTIONS, values, commit=commit, partition=partition)
    read_committed(servers, TRANSACTIONS)  # waits for the last marker


def create(servers: str, topic: str, configs: dict[str, str] | None = None) -> None:
    kept = {"retention.ms": "-1", **(configs or {})}  # the records are years old
    with_admin(servers, lambda admin: admin.create_topic(topic, partitions=PARTITIONS, configs=kept))


async def write_all_kinds(servers: str) -> None:
    """Batches of every codec; with and without keys, values and headers; timestamps out of order."""
    for at, codec in enumerate(CODECS):
        async with Producer(servers, compression=codec) as producer:
            for row in range(ROWS_A_CODEC):
                number = at * ROWS_A_CODEC + row
                for topic in (TOPIC, STAMPED):
                    await producer.enqueue(
                        topic,
                        None if number % 7 == 0 else b"value %d " % number * 5,
                        None if number % 5 == 0 else b"key %d" % (number % 13),
                        headers=[("one", b"%d" % number), ("none", None), ("one", b"")] if number % 3 == 0 else [],
                        timestamp_ms=START_MS + number * 1000 + (7000 if number % 4 == 0 else 0),
                        partition=number % PARTITIONS,
                    )


def by_partition(numbers: dict[int, int], topic: str = TOPIC) -> str:
    inside = ",".join(f'"{partition}":{number}' for partition, number in numbers.items())
    return f'{{"{topic}":{{{inside}}}}}'


MIDDLE_MS = START_MS + 60_000
READS: dict[str, dict[str, str]] = {
    "a topic": {"subscribe": TOPIC},
    "the broker's timestamps": {"subscribe": STAMPED},
    "two topics by a pattern": {"subscribePattern": "compared.*"},
    "some partitions": {"assign": f'{{"{TOPIC}":[0,2],"{STAMPED}":[1]}}', "minPartitions": "7"},
    "offsets": {
        "subscribe": TOPIC,
        "startingOffsets": by_partition({0: 3, 1: -2, 2: 17}),
        "endingOffsets": by_partition({0: 30, 1: 11, 2: -1}),
    },
    "times": {"subscribe": TOPIC, "startingTimestamp": str(MIDDLE_MS), "endingTimestamp": str(MIDDLE_MS + 40_000)},
    "times by partition": {
        "subscribe": TOPIC,
        "startingOffsetsByTimestamp": by_partition({0: MIDDLE_MS, 1: START_MS, 2: MIDDLE_MS + 1}),
        "endingOffsetsByTimestamp": by_partition({0: MIDDLE_MS + 9000, 1: MIDDLE_MS, 2: MIDDLE_MS * 2}),
    },
    "no record is as late": {
        "subscribe": TOPIC,
        "startingTimestamp": str(MIDDLE_MS * 2),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "uncommitted": {"subscribe": TRANSACTIONS},
    "committed": {"subscribe": TRANSACTIONS, "kafka.isolation.level": "read_committed"},
}
COUNTS = {"a topic": 150, "two topics by a pattern": 300, "no record is as late": 0, "uncommitted": 60, "committed": 30}


def rows_of(frame: DataFrame) -> list[Any]:
    """Returns every column unchanged, sorted here: Spark's sort would be a shuffle for each read."""
    shown = frame.selectExpr("*", "unix_micros(timestamp) AS micros").drop("timestamp")
    return sorted(map(repr, shown.collect()))


@pytest.mark.parametrize("name", READS)
def test_a_batch_reads_the_same_rows(spark: SparkSession, servers: str, name: str) -> None:
    found = {}
    for kind in (THEIRS, OURS):
        reader = spark.read.format(kind).options(**{"kafka.bootstrap.servers": servers, **READS[name]})
        frame = reader.option("includeHeaders", "true").load()
        found[kind] = ([(each.name, each.dataType) for each in frame.schema], rows_of(frame))
    assert found[OURS] == found[THEIRS]
    assert name not in COUNTS or len(found[OURS][1]) == COUNTS[name]


def test_a_stream_reads_the_same_rows(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    found = {}
    for kind in (THEIRS, OURS):
        options = {
            "kafka.bootstrap.servers": servers,
            "subscribe": f"{TOPIC},{TRANSACTIONS}",
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": "80",
            "kafka.isolation.level": "read_committed",
        }
        frame = spark.readStream.format(kind).options(**options).load()
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / kind)).trigger(availableNow=True)
        query = finish(writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{kind}")).start)
        assert len([each for each in query.recentProgress if each["numInputRows"]]) >= 3, "several batches"
        found[kind] = rows_of(spark.read.parquet(str(tmp_path / kind)))
    assert found[OURS] == found[THEIRS]
    assert len(found[OURS]) == 180


def test_the_same_rows_become_the_same_records(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    """Including Java's partitioner. Rows without a key and a partition go to any partition."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, "includeHeaders": "true"}
    chosen = ("key", "value", "headers", "if(key IS NULL AND offset % 2 = 0, 1, NULL) AS partition")
    rows = spark.read.format(OURS).options(**options).load().selectExpr(*chosen)
    stream = spark.readStream.format(OURS).options(**options, startingOffsets="earliest").load().selectExpr(*chosen)
    written = {}
    for kind in (THEIRS, OURS):
        to = {"kafka.bootstrap.servers": servers, "kafka.compression.type": "lz4", "includeHeaders": "true"}
        for name in (f"batch-{kind}", f"stream-{kind}"):
            create(servers, name)
        rows.write.format(kind).options(**to, topic=f"batch-{kind}").mode("append").save()
        writer = stream.writeStream.format(kind).options(**to, topic=f"stream-{kind}").trigger(availableNow=True)
        finish(writer.option("checkpointLocation", str(tmp_path / kind)).start)
        written[kind] = [records_of(servers, f"{name}-{kind}") for name in ("batch", "stream")]
    assert written[OURS] == written[THEIRS]
    assert [len(each) for each in written[OURS]] == [150, 150]


def records_of(servers: str, topic: str) -> list[Any]:
    def row(record: ConsumerRecord) -> tuple[Any, ...]:
        partition = record.partition if record.key is not None else None
        return (partition, record.key, record.value, record.headers)

    return sorted(map(row, read_committed(servers, topic)), key=repr)
