"""`spark.readStream.format("ottla")`: batches, restarts, new and lost partitions. Most tests call the reader as Spark
does, without a JVM; whole queries run only where the path through Spark matters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from ottla.spark.data_source import OttlaDataSource
from ottla.spark.source import offsets_lookup
from ottla.spark.source.read import DataLossError, ReadRange
from ottla.spark.source.stream import StreamReader
from ottla.testing import Cluster
from tests.spark.topics import NewTopic, columns, finish, produce, produce_transaction, read_committed, with_admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERYTHING = ReadAllAvailable()
Reader = Callable[..., StreamReader]


@pytest.fixture
def reader(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """`reader(topic, maxOffsetsPerTrigger=5)`; it sees new partitions at once."""
    monkeypatch.setattr(offsets_lookup, "DISCOVERY_S", -1.0)
    made: list[StreamReader] = []

    def new(topic: str, **options: object) -> StreamReader:
        given = {name.replace("__", "."): str(value) for name, value in options.items()}
        base = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
        made.append(OttlaDataSource({**base, **given}).streamReader(columns("value binary")))
        return made[-1]

    yield new
    for each in made:
        each.stop()


def ranges(found: Any) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in found]


def rows(source: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    batches: list[pa.RecordBatch] = [batch for part in source.partitions(start, end) for batch in source.read(part)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_query_reads_what_there_is_and_goes_on(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Trigger.AvailableNow in batches of a bounded size; then again with new records."""
    topic, servers = new_topic(2), cluster.bootstrap_servers
    produce(servers, topic, [b"%03d" % number for number in range(100)], key=lambda number: b"%d" % number)

    def run(name: str) -> list[int]:
        frame = (
            spark.readStream.format("ottla")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "40")
            .option("kafka.group.id", f"group-of-{topic}")
            .load()
        )
        writer = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .queryName(name)
        )
        query = finish(writer.start)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    sizes = run("first")
    assert len(sizes) == 3
    assert max(sizes) <= 40
    produce(servers, topic, [b"%03d" % number for number in range(100, 130)])
    assert run("second") == [30]
    out = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(bytes(row.value) for row in out.select("value").collect()) == [b"%03d" % n for n in range(130)]
    assert out.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    lag = with_admin(servers, lambda admin: admin.group_lag(f"group-of-{topic}"))
    assert lag.lag == 0, "also the last batch is told to the group"
    assert sum(each.committed or 0 for each in lag.partitions) == 130


def test_latest_is_the_same_place_after_a_crash(cluster: Cluster, new_topic: NewTopic, reader: Reader) -> None:
    """A query that died in its first batch is asked again for its start, which must not have moved."""
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, [b"before"])
    first = reader(topic)
    begin = first.initialOffset()
    end = first.latestOffset(begin, EVERYTHING)
    assert end == {topic: {"0": 1}}
    assert first.partitions(begin, end) == []
    produce(cluster.bootstrap_servers, topic, [b"after"])
    again = reader(topic)
    assert again.initialOffset() == begin
    assert rows(again, end, again.latestOffset(end, EVERYTHING)) == [b"after"]


def test_earliest_and_offsets_as_a_beginning(cluster: Cluster, new_topic: NewTopic, reader: Reader) -> None:
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, [b"%d" % number for number in range(10)], timestamp_ms=lambda n: 1000 + n)
    for options, first in (
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": f'{{"{topic}":{{"0":4}}}}'}, 4),
        ({"startingOffsets": f'{{"{topic}":{{"0":-2}}}}'}, 0),
        ({"startingTimestamp": 1007}, 7),
    ):
        source = reader(topic, **options)
        begin = source.initialOffset()
        end = source.latestOffset(begin, ReadMaxRows(2))
        assert rows(source, begin, end) == [b"%d" % first, b"%d" % (first + 1)], options
    source = reader(topic, startingOffsets=f'{{"{topic}":{{"0":-1}}}}')
    assert source.latestOffset(source.initialOffset(), EVERYTHING) == {topic: {"0": 10}}


def test_limits(cluster: Cluster, new_topic: NewTopic, reader: Reader) -> None:
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, [b"x"] * 10)
    begin = {topic: {"0": 0}}
    assert reader(topic, maxOffsetsPerTrigger=7).getDefaultReadLimit() == ReadMaxRows(7)
    assert reader(topic).getDefaultReadLimit() == EVERYTHING
    waiting = reader(topic, minOffsetsPerTrigger=11, maxOffsetsPerTrigger=100)
    assert waiting.latestOffset(begin, ReadMaxRows(100)) == begin, "too little to begin with"
    assert waiting.latestOffset(begin, EVERYTHING) == {topic: {"0": 10}}
    hurried = reader(topic, minOffsetsPerTrigger=11, maxTriggerDelay="0ms")
    assert hurried.latestOffset(begin, ReadMaxRows(100)) == {topic: {"0": 10}}
    assert reader(topic, maxRecordsPerPartition=4).partitions(begin, {topic: {"0": 10}}) == [
        ReadRange(topic, 0, 0, 3),
        ReadRange(topic, 0, 3, 6),
        ReadRange(topic, 0, 6, 10),
    ]


def test_available_now_ends_where_it_began(cluster: Cluster, new_topic: NewTopic, reader: Reader) -> None:
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, [b"x"] * 5)
    source = reader(topic, startingOffsets="earliest")
    source.prepareForTriggerAvailableNow()
    produce(cluster.bootstrap_servers, topic, [b"later"] * 5)
    end = source.latestOffset(source.initialOffset(), EVERYTHING)
    assert end == {topic: {"0": 5}}
    assert source.latestOffset(end, EVERYTHING) == end
    assert source.reportLatestOffset() == end


def test_open_transactions_wait_and_aborted_ones_are_no_loss(
    cluster: Cluster, new_topic: NewTopic, reader: Reader
) -> None:
    topic, servers = new_topic(), cluster.bootstrap_servers
    produce_transaction(servers, topic, [b"a"] * 3, commit=True)
    produce_transaction(servers, topic, [b"b"] * 3, commit=False)
    read_committed(servers, topic)
    source = reader(topic, startingOffsets="earliest", kafka__isolation__level="read_committed")
    begin = source.initialOffset()
    end = source.latestOffset(begin, EVERYTHING)
    assert end == {topic: {"0": 8}}, "with both markers"
    assert rows(source, begin, end) == [b"a"] * 3
    assert rows(source, {topic: {"0": 4}}, end) == [], "all of a range can be aborted"


def test_new_partitions_are_read_from_their_beginning(cluster: Cluster, new_topic: NewTopic, reader: Reader) -> None:
    topic, servers = new_topic(), cluster.bootstrap_servers
    produce(servers, topic, [b"old"])
    source = reader(topic)
    begin = source.latestOffset({}, EVERYTHING)
    with_admin(servers, lambda admin: admin.create_partitions(topic, 2))
    produce(servers, topic, [b"new"], partition=1)
    end = source.latestOffset(begin, ReadMaxRows(100))
    assert end == {topic: {"0": 1, "1": 1}}
    assert rows(source, begin, end) == [b"new"]


def test_lost_records_end_the_query_or_are_left_out(
    cluster: Cluster, new_topic: NewTopic, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    topic, servers = new_topic(), cluster.bootstrap_servers
    produce(servers, topic, [b"%d" % number for number in range(10)])
    with_admin(servers, lambda admin: admin.delete_records({(topic, 0): 6}))
    begin, end = {topic: {"0": 2}}, {topic: {"0": 10}}
    with pytest.raises(DataLossError, match=f"Records of {topic}-0 from offset 2 to 6 were deleted.*failOnDataLoss"):
        reader(topic).partitions(begin, end)
    with caplog.at_level(logging.WARNING):
        assert ranges(reader(topic, failOnDataLoss=False).partitions(begin, end)) == [(0, 6, 10)]
    assert "from offset 2 to 6 were deleted. The query continues without them" in caplog.text
    assert ranges(reader(topic).partitions({topic: {"0": -2}}, end)) == [(0, 6, 10)], "earliest is what is there"


def test_a_topic_that_is_another_one_now(cluster: Cluster, new_topic: NewTopic, reader: Reader) -> None:
    topic, servers = new_topic(), cluster.bootstrap_servers
    produce(servers, topic, [b"x"] * 3)
    begin = {topic: {"0": 9}}
    source = reader(topic)
    with pytest.raises(DataLossError, match="ended at offset 3, before offset 9, which was already read"):
        source.partitions(begin, source.latestOffset(begin, EVERYTHING))
    careless = reader(topic, failOnDataLoss=False)
    assert careless.partitions(begin, careless.latestOffset(begin, EVERYTHING)) == []


def test_a_topic_that_is_gone(cluster: Cluster, new_topic: NewTopic, reader: Reader) -> None:
    topic, servers = new_topic(), cluster.bootstrap_servers
    source, careless = reader(topic), reader(topic, failOnDataLoss=False)
    begin = source.latestOffset({}, EVERYTHING)
    with_admin(servers, lambda admin: admin.delete_topic(topic))
    with pytest.raises(DataLossError, match=f"{topic} no longer exists"):
        source.latestOffset(begin, EVERYTHING)
    assert careless.latestOffset(begin, EVERYTHING) == begin
    with pytest.raises(DataLossError, match=f"{topic}-0 no longer exists"):
        source.partitions(begin, {topic: {"0": 5}})


def test_a_group_with_members_of_its_own_is_left_alone(
    cluster: Cluster, new_topic: NewTopic, reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    """Committed progress is informational: a query does not fail because the group rejects it."""
    import asyncio

    from ottla.client import Consumer

    topic, servers = new_topic(), cluster.bootstrap_servers
    produce(servers, topic, [b"x"])

    async def with_a_member() -> dict[str, Any]:
        async with Consumer(servers, group_id=f"busy-{topic}") as consumer:
            consumer.subscribe([topic])
            while not consumer.in_group:
                await consumer.fetch_records(timeout_ms=50)
            return await asyncio.to_thread(reader(topic, ottla__group=f"busy-{topic}").latestOffset, begin, EVERYTHING)

    begin = {topic: {"0": 0}}
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(with_a_member()) == {topic: {"0": 1}}
    assert f"offsets to group busy-{topic}" in caplog.text
