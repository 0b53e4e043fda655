"""Corrupted bytes on the disk are logged and never served; everything around them is served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.client import Consumer, TopicPartition
from ottla.client.errors import CorruptBatchError
from ottla.testing.broker_process import BrokerProcess
from tests.processes.conftest import StartBroker
from tests.processes.traffic import NotReadableError, create_topic, ends, read, write

RECORD_BYTES = 20_000
RECORDS = 200


def value(number: int) -> bytes:
    return b"%06d" % number + b"v" * RECORD_BYTES


def filled(start_broker: StartBroker, durability: str) -> tuple[BrokerProcess, list[Path]]:
    """Returns a stopped broker whose topic has several sealed segments, and those segments."""
    broker = start_broker()
    create_topic(broker.bootstrap, "topic", ottla_durability=durability, segment_bytes=str(1 << 20))
    for start in range(0, RECORDS, 10):
        write(broker.bootstrap, "topic", [value(number) for number in range(start, start + 10)])
    assert broker.stop() == 0
    segments = sorted(path for path in broker.data.glob("logs/*/*.log") if path.stat().st_size > 0)
    assert len(segments) >= 3
    return broker, segments


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        before = file.read(16)
        file.seek(position)
        file.write(bytes(byte ^ 0xFF for byte in before))


@pytest.mark.parametrize("durability", ["disk", "cache"])
def test_a_damaged_sealed_segment(start_broker: StartBroker, durability: str) -> None:
    broker, segments = filled(start_broker, durability)
    hurt = segments[1]
    flip(hurt, hurt.stat().st_size // 2)
    broker.start()
    assert ends(broker.bootstrap, "topic") == (0, RECORDS), "damage must not shorten the log"

    readable: dict[int, bytes] = {}
    refused = []
    hurt_first, hurt_end = int(hurt.stem), int(segments[2].stem)
    readable.update(read(broker.bootstrap, "topic", offset=0, end=hurt_first))
    readable.update(read(broker.bootstrap, "topic", offset=hurt_end))
    for offset in range(hurt_first, hurt_end):
        try:
            readable.update(read(broker.bootstrap, "topic", offset=offset, end=offset + 1)[:1])
        except NotReadableError:
            refused.append(offset)
    assert refused, "damaged records were served"
    assert refused == list(range(refused[0], refused[-1] + 1))
    assert len(refused) <= 10, "at most the batch that was hit cannot be read"
    assert readable == {number: value(number) for number in range(RECORDS) if number not in refused}

    with pytest.raises(CorruptBatchError):
        asyncio.run(read_with_our_client(broker.bootstrap, refused[0]))

    log = broker.log()
    assert hurt.name in log, "the damaged file must be named"
    assert f"ffsets {refused[0]} to {refused[-1]}" in log, "the damaged offsets must be named"
    assert write(broker.bootstrap, "topic", [b"goes on"])[0].offset == RECORDS


async def read_with_our_client(bootstrap: str, offset: int) -> None:
    async with Consumer(bootstrap) as consumer:
        partition = TopicPartition("topic", 0)
        consumer.assign([partition])
        consumer.seek(partition, offset)
        await consumer.fetch_records(timeout_ms=20_000)


def test_a_torn_end_of_a_cache_log(start_broker: StartBroker) -> None:
    """The remains of a write torn by a power cut are truncated; the records before it are served."""
    broker, segments = filled(start_broker, "cache")
    active = segments[-1]
    last = active.read_bytes()
    (broker.data / "checkpoint").unlink()
    active.write_bytes(last[:-100])
    broker.start()
    found = read(broker.bootstrap, "topic")
    assert RECORDS - 10 <= len(found) < RECORDS
    assert found == [(number, value(number)) for number in range(len(found))]
    assert write(broker.bootstrap, "topic", [b"goes on"])[0].offset == len(found)


def test_a_lost_segment_is_named(start_broker: StartBroker) -> None:
    broker, segments = filled(start_broker, "disk")
    lost = int(segments[-1].stem)
    segments[-1].unlink()
    broker.start()
    assert f"Offsets {lost} to {RECORDS - 1} cannot be read" in broker.log()
    assert ends(broker.bootstrap, "topic")[1] == RECORDS, "offsets that were given out are not given out again"
