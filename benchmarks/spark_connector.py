"""How fast Ottla's Spark source and sink are, beside Spark's own Kafka connector on the same topics.

    python benchmarks/spark_connector.py [--brokers ottla kafka] [--bytes 100 1024] [--rows 2000000] [--runs 5]

One session measures one broker after another, Ottla's and Apache Kafka's, both with their defaults, on topics with four
partitions. A read counts the rows and sums the lengths of keys and values; a write takes rows from Parquet. Streaming
is eight micro-batches (Trigger.AvailableNow), and its time is that of the batches, as Spark reports it; the time before
and after the batches is the row of a query that has nothing to read. The formats take turns, after a run of each that
does not count. Each answer is checked.

The table shows medians: rows per second, the ratio to the connector, and the CPU seconds of everything but the broker
(this process, Spark's JVM, its Python workers), from the start of a query to its end. On a shared machine the CPU
seconds are steadier.

Needs Java 17 and Maven, which downloads the connector and Kafka once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from ottla.bench.processes import cpu_seconds_below
from ottla.bench.quotients import rate, ratio, times_text
from ottla.bench.suite.kafka_cluster import KafkaCluster
from ottla.bench.suite.spark_connector_jars import class_path, connector_libraries, connector_version
from ottla.cli.output import print_table, say
from ottla.client import Admin, Consumer, Producer
from ottla.spark.session import new_session
from ottla.testing.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import Row as SparkRow
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 4
LARGE_SHARE = 0.25
"""The share of the rows for records of 1 KB, so that a run takes about as long."""
KEY_BYTES = 8
ROWS_A_TABLE = 50_000
MICRO_BATCHES = 8
SUMS = ("count(*) AS rows", "sum(length(key) + length(value)) AS bytes")
SETTINGS = {
    # As Spark starts a JVM by default: the options of `new_session` for a fast start would slow down the peer.
    "spark.driver.extraJavaOptions": "-Dottla=benchmark",
    "spark.driver.memory": "3g",
    "spark.default.parallelism": str(PARTITIONS),
    "spark.sql.shuffle.partitions": "2",
}


class Broker(NamedTuple):
    name: str
    bootstrap: str
    pids: tuple[int, ...]


class Way(NamedTuple):
    label: str
    format: str
    options: tuple[tuple[str, str], ...] = ()


class Measured(NamedTuple):
    name: str
    rows: int
    run: Callable[[Way], float]
    """Returns the seconds that count."""
    ways: tuple[Way, ...]


class Took(NamedTuple):
    wall_s: float
    cpu_s: float


CONNECTOR = Way("connector", "kafka")
OURS = Way("ottla", "ottla")
LEAST = Way("ottla, at least once", "ottla", (("ottla.delivery", "at-least-once"),))
ONCE = Way("ottla, exactly once", "ottla")


class Loads:
    """The queries on one broker, with records of one size."""

    def __init__(self, spark: SparkSession, broker: Broker, record_bytes: int, rows: int, directory: Path) -> None:
        self._spark = spark
        self._servers = broker.bootstrap
        self._rows = rows
        self._record_bytes = record_bytes
        self._directory = directory
        self._files = str(directory / f"rows-{record_bytes}")
        self._source, self._target, self._empty = (f"{name}-{record_bytes}" for name in ("read", "written", "empty"))
        self._count = 0

    def prepare(self) -> None:
        asyncio.run(fill(self._servers, self._source, self._rows, self._record_bytes))
        asyncio.run(make_topic(self._servers, self._target))
        asyncio.run(make_topic(self._servers, self._empty))
        value = f"repeat('x', {self._record_bytes - KEY_BYTES}) AS value"
        made = self._spark.range(0, self._rows, 1, PARTITIONS * MICRO_BATCHES).selectExpr(
            "lpad(id, 8, '0') AS key", value
        )
        made.write.mode("overwrite").parquet(self._files)

    def each(self) -> Iterator[Measured]:
        size = f"{self._record_bytes:,} B"
        yield Measured(f"read, batch, {size}", self._rows, self.read_batch, (CONNECTOR, OURS))
        yield Measured(f"read, streaming, {size}", self._rows, self.read_stream, (CONNECTOR, OURS))
        yield Measured("a streaming query, nothing to read", 0, self.read_nothing, (CONNECTOR, OURS))
        yield Measured(f"write, batch, {size}", self._rows, self.write_batch, (CONNECTOR, LEAST, ONCE))
        yield Measured(f"write, streaming, {size}", self._rows, self.write_stream, (CONNECTOR, LEAST, ONCE))

    def read_batch(self, way: Way) -> float:
        began_s = time.monotonic()
        frame = self._spark.read.format(way.format).options(**self._options(way), subscribe=self._source).load()
        self._check(frame.selectExpr(*SUMS).collect()[0])
        return time.monotonic() - began_s

    def read_stream(self, way: Way) -> float:
        limit = {"maxOffsetsPerTrigger": str(self._rows // MICRO_BATCHES)}
        name, batches_s = self._sums(way, {"subscribe": self._source, **limit})
        self._check(self._spark.table(name).collect()[0])
        return batches_s

    def read_nothing(self, way: Way) -> float:
        began_s = time.monotonic()
        self._sums(way, {"subscribe": self._empty})
        return time.monotonic() - began_s

    def _sums(self, way: Way, more: Mapping[str, str]) -> tuple[str, float]:
        """Returns the name of the table with a query's result, and the time of its batches."""
        options = {**self._options(way), "startingOffsets": "earliest", **more}
        sums = self._spark.readStream.format(way.format).options(**options).load().selectExpr(*SUMS)
        name = f"sums_{self._next()}"
        writer = sums.writeStream.format("memory").queryName(name).outputMode("complete")
        query = writer.option("checkpointLocation", self._checkpoint()).trigger(availableNow=True).start()
        query.awaitTermination()
        return name, seconds_of_batches(query)

    def write_batch(self, way: Way) -> float:
        before, began_s = asyncio.run(end_of(self._servers, self._target)), time.monotonic()
        rows = self._spark.read.parquet(self._files)
        rows.write.format(way.format).options(**self._options(way), topic=self._target).mode("append").save()
        took_s = time.monotonic() - began_s
        self._check_written(before)
        return took_s

    def write_stream(self, way: Way) -> float:
        before = asyncio.run(end_of(self._servers, self._target))
        reader = self._spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", PARTITIONS)
        rows = reader.parquet(self._files)
        writer = rows.writeStream.format(way.format).options(**self._options(way), topic=self._target)
        query = writer.option("checkpointLocation", self._checkpoint()).trigger(availableNow=True).start()
        query.awaitTermination()
        self._check_written(before)
        return seconds_of_batches(query)

    def _options(self, way: Way) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._servers, **dict(way.options)}

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _checkpoint(self) -> str:
        return str(self._directory / f"checkpoint-{self._record_bytes}-{self._next()}")

    def _check(self, sums: SparkRow) -> None:
        assert (sums["rows"], sums["bytes"]) == (self._rows, self._rows * self._record_bytes), sums

    def _check_written(self, before: int) -> None:
        """Checks the number of written rows. Transaction markers take offsets too: one for each task and partition."""
        more = asyncio.run(end_of(self._servers, self._target)) - before
        assert self._rows <= more <= self._rows + 1000 * PARTITIONS, more


def seconds_of_batches(query: StreamingQuery) -> float:
    return sum(each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]) / 1000


# Topics.


async def make_topic(servers: str, topic: str) -> None:
    async with Admin(servers) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS, configs={"retention.bytes": str(1 << 29)})


async def fill(servers: str, topic: str, rows: int, record_bytes: int) -> None:
    async with Admin(servers) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS)
    value = b"x" * (record_bytes - KEY_BYTES)
    async with Producer(servers) as producer:
        for start in range(0, rows, ROWS_A_TABLE):
            numbers = range(start, min(start + ROWS_A_TABLE, rows))
            keys = [b"%08d" % number for number in numbers]
            await producer.send_table(topic, pa.table({"key": keys, "value": [value] * len(keys)}))


async def end_of(servers: str, topic: str) -> int:
    async with Consumer(servers) as consumer:
        return sum((await consumer.end_offsets(await consumer.partitions(topic))).values())


@contextmanager
def running(name: str, directory: Path) -> Iterator[Broker]:
    if name == "kafka":
        with KafkaCluster(directory / "kafka", 1, heap_mb=1024, config={}) as kafka:
            yield Broker("Apache Kafka", kafka.bootstrap, kafka.pids)
        return
    with BrokerProcess(directory / "ottla", arguments=("--log-level", "warning")) as broker:
        yield Broker("Ottla", broker.bootstrap, (broker.pid,))


# Measuring.


def measure(broker: Broker, measured: Measured, runs: int) -> dict[Way, list[Took]]:
    took: dict[Way, list[Took]] = {way: [] for way in measured.ways}
    for number in range(runs + 1):
        for way in measured.ways:
            before_s = cpu_seconds_below(os.getpid(), without=broker.pids)
            wall_s = measured.run(way)
            this = Took(wall_s, cpu_seconds_below(os.getpid(), without=broker.pids) - before_s)
            say(f"{broker.name}: {measured.name}, {way.label}: {this.wall_s:.1f} s, CPU {this.cpu_s:.1f} s")
            if number:
                took[way].append(this)
    return took


def lines(broker: Broker, measured: Measured, took: Mapping[Way, list[Took]]) -> Iterator[tuple[str, ...]]:
    peer_s, peer_cpu_s = (statistics.median(each) for each in zip(*took[measured.ways[0]], strict=True))
    for way, runs in took.items():
        wall_s, cpu_s = (statistics.median(each) for each in zip(*runs, strict=True))
        speed = f"{rate(measured.rows, wall_s):,.0f}" if measured.rows else f"{wall_s:.1f} s"
        times = "" if way is CONNECTOR else times_text(ratio(peer_s, wall_s))
        cpu_times = "" if way is CONNECTOR else times_text(ratio(cpu_s, peer_cpu_s))
        yield broker.name, measured.name, way.label, speed, times, f"{cpu_s:.1f}", cpu_times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", nargs="+", default=["ottla", "kafka"], choices=["ottla", "kafka"])
    parser.add_argument("--bytes", nargs="+", type=int, default=[100, 1024])
    parser.add_argument(
        "--rows", type=int, default=2_000_000, help="number of records of 100 bytes; a quarter of it for larger records"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="only measurements whose name matches this regular expression")
    parser.add_argument("--data", type=Path, help="a directory for the brokers' data; a temporary one by default")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="spark-connector-", dir=arguments.data))
    settings = {**SETTINGS, "spark.driver.extraClassPath": class_path(connector_libraries())}
    spark = new_session("benchmark of connectors", settings=settings)
    shown: list[tuple[str, ...]] = []
    try:
        for name in arguments.brokers:
            with running(name, directory) as broker:
                for record_bytes in arguments.bytes:
                    rows = arguments.rows if record_bytes < 1000 else int(arguments.rows * LARGE_SHARE)
                    loads = Loads(spark, broker, record_bytes, rows, directory)
                    loads.prepare()
                    for measured in loads.each():
                        if re.search(arguments.only, measured.name):
                            shown += lines(broker, measured, measure(broker, measured, arguments.runs))
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    say(f"Spark {spark.version}, its Kafka connector {connector_version()}")
    headings = ["broker", "what", "by", "rows/s", "x connector", "CPU s", "x connector's"]
    print_table(headings, shown, right=headings[3:])


if __name__ == "__main__":
    main()
