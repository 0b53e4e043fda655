"""`spark.read.format("ottla")` on a real broker: the same rows as a consumer gets, with any options."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan

from ottla.client.consumer import fetcher
from ottla.protocol.wire.fetch_client import parse_fetch_response
from ottla.spark.data_source import OttlaDataSource
from ottla.spark.source.read import ReadRange
from ottla.testing import Cluster
from tests.spark.topics import NewTopic, columns, produce, produce_transaction, read_committed, with_admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]


@pytest.fixture
def read(spark: SparkSession, cluster: Cluster) -> Read:
    """`read(topic, schema="…", minPartitions=3)`; `__` stands for a dot."""

    def load(topic: str | None = None, schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("ottla").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), str(value))
        return (reader if schema is None else reader.schema(schema)).load()

    return load


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, end)]


def test_the_same_rows_as_a_consumer(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    topic = new_topic(2)
    produce(
        cluster.bootstrap_servers,
        topic,
        [None if number % 7 == 0 else b"v%d" % number for number in range(300)],
        key=lambda number: None if number % 5 == 0 else b"k%d" % number,
        headers=lambda number: [("one", b"1"), ("none", None)] if number % 3 == 0 else [],
        timestamp_ms=lambda number: 1_700_000_000_000 + number,
    )
    frame = read(topic, includeHeaders=True)
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    found = {
        (row.partition, row.offset): (
            row.topic,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.ms,
            row.timestampType,
            tuple((each.key, None if each.value is None else bytes(each.value)) for each in row.headers or ()),
        )
        for row in frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    }
    expected = {
        (each.partition, each.offset): (topic, each.key, each.value, each.timestamp_ms, 0, each.headers)
        for each in read_committed(cluster.bootstrap_servers, topic)
    }
    assert found == expected
    assert len(found) == 300
    assert frame.where("headers IS NULL").count() == 200, "null without headers, as in Spark's connector"


def test_whose_timestamps_they_are(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    produce(cluster.bootstrap_servers, topic, [b"x"], timestamp_ms=5)
    (row,) = read(topic).selectExpr("timestampType", "unix_millis(timestamp) AS ms").collect()
    assert row.timestampType == 1
    assert row.ms > 5


def test_ways_to_say_what_to_read(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    one, two, other = (new_topic(2, prefix=prefix) for prefix in ("ways-a", "ways-a", "ways-b"))
    for number, topic in enumerate((one, two, other)):
        for partition in (0, 1):
            produce(cluster.bootstrap_servers, topic, [b"%d%d" % (number, partition)], partition=partition)
    assert values(read(f"{one}, {other}")) == [b"00", b"01", b"20", b"21"]
    assert values(read(subscribePattern=f"{one[:-1]}.*|{two}")) == [b"00", b"01", b"10", b"11"]
    assert values(read(assign=f'{{"{one}":[1],"{two}":[0]}}')) == [b"01", b"10"]


def test_where_to_begin_and_to_end(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, numbers(0, 100), timestamp_ms=lambda number: 1000 + number * 10)
    at = f'{{"{topic}":{{"0":%d}}}}'
    cases: list[tuple[dict[str, Any], list[bytes]]] = [
        ({"startingOffsets": at % 10, "endingOffsets": at % 20}, numbers(10, 20)),
        ({"startingOffsets": at % -2, "endingOffsets": at % -1}, numbers(0, 100)),
        ({"startingTimestamp": 1500, "endingTimestamp": 1600}, numbers(50, 60)),
        ({"startingOffsetsByTimestamp": at % 1501, "endingOffsetsByTimestamp": at % 9999}, numbers(51, 100)),
        ({"startingTimestamp": 9999, "startingOffsetsByTimestampStrategy": "latest"}, []),
    ]
    for options, expected in cases:
        assert values(read(topic, **options)) == expected, options
    with pytest.raises(AnalysisException, match=r"no record of .* is at or after 9999 ms"):
        read(topic, startingTimestamp=9999).count()


def test_large_partitions_are_cut(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, numbers(0, 100))
    assert read(topic).rdd.getNumPartitions() == 1
    cut = read(topic, minPartitions=4)
    assert cut.rdd.getNumPartitions() == 4
    assert values(cut) == numbers(0, 100)
    assert read(topic, maxRecordsPerPartition=34).rdd.getNumPartitions() == 3


def test_only_the_columns_that_are_named(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, numbers(0, 10), key=b"k" * 100)
    assert [row.offset for row in read(topic, schema="offset long").collect()] == list(range(10))
    (part,) = source_parts(cluster, topic, "offset long, value binary")
    assert [column.name for column in part.schema] == ["offset", "value"], "the key does not go to the JVM"
    for wrong, message in {
        "offset int": "column offset is of type bigint, not int",
        "words string": "there is no column words; the columns are key, value",
    }.items():
        with pytest.raises(AnalysisException, match=message):
            read(topic, schema=wrong).count()


def source_parts(cluster: Cluster, topic: str, schema: str) -> list[pa.RecordBatch]:
    source = OttlaDataSource({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic})
    reader = source.reader(columns(schema))
    return [batch for part in reader.partitions() for batch in reader.read(part)]


def scanned(frame: DataFrame) -> int:
    """Returns how many rows came from the source."""
    frame.collect()
    leaves: Any = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return int(leaves.head().metrics().apply("numOutputRows").value())


def test_filters_reach_the_source(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    topic = new_topic(2)
    for partition in (0, 1):
        produce(
            cluster.bootstrap_servers,
            topic,
            numbers(0, 100),
            partition=partition,
            timestamp_ms=lambda number: 1_000_000 + number * 1000,
        )
    everything = read(topic)
    cases = {
        "offset >= 90": 20,
        "offset = 5": 2,
        "partition = 1": 100,
        "offset BETWEEN 10 AND 19 AND partition = 0": 10,
        f"topic = '{topic}' AND offset < 3": 6,
        "timestamp >= timestamp_millis(1090000)": 20,
        "timestamp > timestamp_millis(1090000) AND timestamp < timestamp_millis(1095000)": 8,
        "topic = 'another'": 0,
    }
    for condition, count in cases.items():
        frame = everything.where(condition)
        assert scanned(frame) == count, condition
        assert frame.count() == count, condition
    assert everything.where("offset + 1 > 90").count() == 20, "what cannot be pushed down is done by Spark"


def test_times_out_of_order_lose_nothing(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    """The first record is the latest: an end in time is not an end in offsets."""
    topic = new_topic()
    times_ms = [9000, 1000, 8000, 2000, 7000]
    produce(cluster.bootstrap_servers, topic, numbers(0, 5), timestamp_ms=lambda number: times_ms[number])
    frame = read(topic)
    assert values(frame.where("timestamp < timestamp_millis(5000)")) == [b"0001", b"0003"]
    assert values(frame.where("timestamp >= timestamp_millis(8000)")) == [b"0000", b"0002"]


def test_a_time_is_looked_up_not_read(cluster: Cluster, new_topic: NewTopic) -> None:
    """A task's range begins at the time: nothing before it is fetched."""
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, numbers(0, 50), timestamp_ms=lambda number: 1_000_000 + number)
    source = OttlaDataSource({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic})
    reader = source.reader(columns("offset long"))
    since = datetime.fromtimestamp(1000.040, UTC)
    filters = [GreaterThanOrEqual(("timestamp",), since), LessThan(("offset",), 45), EqualTo(("topic",), topic)]
    assert list(reader.pushFilters(filters)) == filters, "Spark looks again"
    assert list(reader.partitions()) == [ReadRange(topic, 0, 40, 45)]


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        ([], 3000),
        ([GreaterThanOrEqual(("offset",), 1400)], 200),
        ([LessThan(("offset",), 100)], 200),
        ([GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(2.4, UTC))], 200),
        ([EqualTo(("partition",), 1)], 1500),
        ([EqualTo(("topic",), "another")], 0),
    ],
)
def test_what_filters_leave_out_is_not_fetched(
    cluster: Cluster, large_topic: str, monkeypatch: pytest.MonkeyPatch, filters: list[Filter], rows: int
) -> None:
    """Counts the bytes sent: besides the rows, at most the rest of the first and last batch of each range."""
    sent: list[int] = []

    def count(reply: Any, version: int) -> Any:
        sent.append(len(reply))
        return parse_fetch_response(reply, version)

    monkeypatch.setattr(fetcher, "parse_fetch_response", count)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": large_topic}
    source = OttlaDataSource({**options, "kafka.max.partition.fetch.bytes": "20000"})
    reader = source.reader(columns("offset long"))
    list(reader.pushFilters(filters))
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in found) == rows
    assert rows * VALUE_BYTES <= sum(sent) <= rows * VALUE_BYTES * 1.05 + 2 * BATCH_BYTES


VALUE_BYTES, BATCH_BYTES = 1000, 132 * 1024


@pytest.fixture
def large_topic(cluster: Cluster, new_topic: NewTopic) -> str:
    """Two partitions of 1,500 records, a millisecond apart."""
    topic = new_topic(2)
    produce(
        cluster.bootstrap_servers,
        topic,
        [b"x" * VALUE_BYTES] * 3000,
        partition=lambda number: number % 2,
        timestamp_ms=lambda number: 1000 + number // 2,
    )
    return topic


def test_what_was_aborted_is_no_loss(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    topic = new_topic()
    servers = cluster.bootstrap_servers
    for number, commit in enumerate((True, False, True, False)):
        produce_transaction(servers, topic, numbers(number * 10, number * 10 + 10), commit=commit)
    read_committed(servers, topic)  # waits for the last marker
    committed = read(topic, kafka__isolation__level="read_committed", minPartitions=3)
    assert values(committed) == numbers(0, 10) + numbers(20, 30)
    assert values(read(topic)) == numbers(0, 40)


def test_lost_records_are_told_or_left_out(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, numbers(0, 30))
    with_admin(cluster.bootstrap_servers, lambda admin: admin.delete_records({(topic, 0): 10}))
    assert values(read(topic)) == numbers(10, 30), "earliest is what is there"
    since_5 = {"startingOffsets": f'{{"{topic}":{{"0":5}}}}'}
    with pytest.raises(AnalysisException, match=f"{topic}-0 from offset 5 to 10 were deleted.*failOnDataLoss"):
        read(topic, **since_5).count()
    assert values(read(topic, **since_5, failOnDataLoss=False)) == numbers(10, 30)
    until_40 = {"endingOffsets": f'{{"{topic}":{{"0":40}}}}'}
    with pytest.raises(AnalysisException, match="from offset 30 to 40 do not exist"):
        read(topic, **until_40).count()


def test_what_is_lost_while_tasks_read(cluster: Cluster, new_topic: NewTopic) -> None:
    """Retention runs between the plan and the task."""
    topic = new_topic()
    produce(cluster.bootstrap_servers, topic, numbers(0, 30))
    with_admin(cluster.bootstrap_servers, lambda admin: admin.delete_records({(topic, 0): 10}))
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    schema = columns("value binary")
    planned = ReadRange(topic, 0, 5, 20)
    with pytest.raises(Exception, match="from offset 5 to 10 were deleted"):
        list(OttlaDataSource(options).reader(schema).read(planned))
    batches = list(OttlaDataSource({**options, "failOnDataLoss": "false"}).reader(schema).read(planned))
    assert pa.Table.from_batches(batches).column("value").to_pylist() == numbers(10, 20)
    gone = list(OttlaDataSource({**options, "failOnDataLoss": "false"}).reader(schema).read(ReadRange(topic, 0, 5, 8)))
    assert gone == []


def test_a_topic_that_is_not_there(cluster: Cluster, read: Read) -> None:
    with pytest.raises(AnalysisException, match=r"there is no topic nowhere at 127\.0\.0\.1"):
        read("nowhere").count()
    with pytest.raises(AnalysisException, match=r"no topic at .* matches 'nowhere\.\*'"):
        read(subscribePattern="nowhere.*").count()


def test_mistakes_are_told(cluster: Cluster, new_topic: NewTopic, read: Read) -> None:
    topic = new_topic()
    with pytest.raises((AnalysisException, PythonException), match=re.escape("did you mean startingOffsets?")):
        read(topic, startingOffset="earliest").count()
    with pytest.raises((AnalysisException, PythonException), match="PLAINTEXT only"):
        read(topic, kafka__security__protocol="SSL").count()
