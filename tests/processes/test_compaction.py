"""A compacted topic through a real client: a reader builds the same table that was written.

The broker is killed repeatedly while it compacts; half of the kills are power cuts (`--disk volatile`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, Producer, TopicPartition

from ottla.testing.broker_process import BrokerProcess
from tests.processes.conftest import StartBroker
from tests.processes.traffic import QUIET, TIMEOUT_S, consumer_of, create_topic, ends, write

TOPIC = "table"
KEYS = 200
EAGER = {
    "log.cleaner.backoff.ms": "50",
    "ottla.flush.interval.ms": "100",
    "ottla.log.cleaner.cpu.percent": "100",
}
WAIT_S = 60.0


def create(broker: BrokerProcess, durability: str = "disk") -> None:
    create_topic(
        broker.bootstrap,
        TOPIC,
        ottla_durability=durability,
        cleanup_policy="compact",
        segment_bytes=str(64 * 1024),
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="500",
    )


class Table:
    """The acknowledged writes."""

    def __init__(self, bootstrap: str, chance: random.Random, compression: str = "none") -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.written = 0
        self._chance = chance
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                **QUIET,
                "enable.idempotence": True,
                "linger.ms": 1,
                "compression.type": compression,
                "message.timeout.ms": 60_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self.failures: list[str] = []

    def write(self, count: int) -> None:
        for _ in range(count):
            key = b"key %d" % self._chance.randrange(KEYS)
            value = None if self._chance.random() < 0.1 else self._chance.randbytes(self._chance.randint(1, 300))
            self._producer.produce(TOPIC, value, key, partition=0, on_delivery=self._on_delivery)
            self.rows[key] = value
            self.written += 1
            self._producer.poll(0)

    def settle(self) -> None:
        """Waits until everything is acknowledged; the producer retries until then."""
        assert self._producer.flush(WAIT_S) == 0
        assert self.failures == []

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error.name())

    @property
    def values(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self.rows.items() if value is not None}


def read_records(bootstrap: str) -> list[tuple[int, bytes, bytes | None]]:
    """Returns offset, key and value of all records. The end is the reader's own position: the last offsets may have no
    records any more."""
    consumer = consumer_of(bootstrap, reset="earliest")
    where = TopicPartition(TOPIC, 0, OFFSET_BEGINNING)
    found: list[tuple[int, bytes, bytes | None]] = []
    try:
        _, end = consumer.get_watermark_offsets(where, TIMEOUT_S)
        consumer.assign([where])
        deadline = time.monotonic() + WAIT_S
        while not found or found[-1][0] + 1 < end:
            assert time.monotonic() < deadline, f"read up to {found[-1:]}, the log ends at {end}"
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None, message.error()
                found.append((message.offset() or 0, message.key() or b"", message.value()))
    finally:
        consumer.close()
    return found


def table_of(records: list[tuple[int, bytes, bytes | None]]) -> dict[bytes, bytes]:
    table = {key: value for _, key, value in records}
    return {key: value for key, value in table.items() if value is not None}


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def segment_bytes(broker: BrokerProcess) -> int:
    return sum(path.stat().st_size for path in broker.data.glob("logs/**/*.log"))


@pytest.mark.parametrize(("durability", "compression"), [("disk", "none"), ("cache", "lz4")])
def test_a_reader_has_the_last_value_of_each_key(start_broker: StartBroker, durability: str, compression: str) -> None:
    broker = start_broker(config=EAGER)
    create(broker, durability)
    table = Table(broker.bootstrap, random.Random(7), compression)
    for _ in range(5):
        table.write(2000)
        table.settle()
    wait_until(lambda: len(read_records(broker.bootstrap)) < 2500, "it is not compacted")
    records = read_records(broker.bootstrap)
    offsets = [offset for offset, _, _ in records]
    assert offsets == sorted(set(offsets))
    assert table_of(records) == table.values
    assert ends(broker.bootstrap, TOPIC) == (0, table.written)
    broker.kill()
    broker.start()
    assert table_of(read_records(broker.bootstrap)) == table.values


def test_tombstones_go_in_the_end(start_broker: StartBroker) -> None:
    broker = start_broker(config=EAGER)
    create(broker)
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUIET})
    for number in range(300):
        producer.produce(TOPIC, b"x" * 400, b"gone %d" % (number % 50), partition=0)
    for number in range(50):
        producer.produce(TOPIC, None, b"gone %d" % number, partition=0)
    producer.flush(TIMEOUT_S)

    def nothing_is_left() -> bool:
        """Compaction processes full segments, and tombstones again when there is new data."""
        for _ in range(40):
            producer.produce(TOPIC, b"y" * 400, b"alive", partition=0)
        producer.flush(TIMEOUT_S)
        return not any(key.startswith(b"gone") for _, key, _ in read_records(broker.bootstrap))

    wait_until(nothing_is_left, "there are tombstones left")
    assert set(table_of(read_records(broker.bootstrap))) == {b"alive"}


def test_records_without_a_key_are_refused(start_broker: StartBroker) -> None:
    broker = start_broker()
    create_topic(broker.bootstrap, TOPIC, cleanup_policy="compact")
    (outcome,) = write(broker.bootstrap, TOPIC, [b"no key"])
    assert outcome.error == "INVALID_RECORD"


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power cut"])
def test_killed_while_it_compacts(start_broker: StartBroker, power_cut: bool) -> None:
    chance = random.Random(11)
    broker = start_broker(config=EAGER, arguments=("--disk", "volatile") if power_cut else ())
    create(broker)
    table = Table(broker.bootstrap, chance)
    for _ in range(5):
        for _ in range(3):
            table.write(500)
            time.sleep(chance.uniform(0.0, 0.15))
        broker.kill()
        table.write(100)
        broker.start()
        table.settle()
        records = read_records(broker.bootstrap)
        assert table_of(records) == table.values
        assert ends(broker.bootstrap, TOPIC) == (0, table.written)
    assert len(records) < table.written / 2, "it was never compacted"
    assert "damaged" not in broker.log()
