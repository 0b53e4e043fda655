"""Retention of seconds works: old records are deleted, new ones stay, and disk space is freed."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from ottla.testing.broker_process import BrokerProcess
from ottla.wal import Log, LogSettings
from tests.processes.conftest import StartBroker
from tests.processes.traffic import create_topic, ends, read, write

RETENTION_MS = 2000


def wait_for_start(broker: BrokerProcess, offset: int) -> None:
    deadline = time.monotonic() + 60
    while ends(broker.bootstrap, "topic")[0] < offset and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ends(broker.bootstrap, "topic")[0] >= offset


@pytest.mark.parametrize("durability", ["disk", "cache", "memory"])
def test_retention_of_seconds(start_broker: StartBroker, durability: str) -> None:
    broker = start_broker()
    create_topic(
        broker.bootstrap,
        "topic",
        ottla_durability=durability,
        retention_ms=str(RETENTION_MS),
        segment_ms="1000",
    )
    write(broker.bootstrap, "topic", [b"old"] * 100)
    wait_for_start(broker, 100)
    assert read(broker.bootstrap, "topic") == []
    assert write(broker.bootstrap, "topic", [b"new"])[0].offset == 100
    if durability != "memory":
        broker.kill()
        broker.start()
        first, end = ends(broker.bootstrap, "topic")
        assert first >= 100, "what retention removed must not come back"
        assert end == 101


@pytest.mark.parametrize("durability", ["disk", "cache", "memory"])
async def test_a_wal_of_seconds_gives_up_old_records_while_it_is_written_to(
    start_broker: StartBroker, durability: str
) -> None:
    """With the default segment size nothing would be deleted before a week or a gigabyte."""
    broker = start_broker(config={"ottla.wal.port": "0"})
    settings = LogSettings(durability=durability, retention_ms=RETENTION_MS)
    async with await Log.open(broker.wal_server, "wal", create=settings) as log:
        deadline = time.monotonic() + 60
        while (await log.tail()).start_offset == 0 and time.monotonic() < deadline:
            await log.append(b"x")
            await asyncio.sleep(0.05)
        tail = await log.tail()
        assert 0 < tail.start_offset < tail.end_offset


def test_a_short_retention_brings_short_segments_along() -> None:
    def configs(**settings: Any) -> dict[str, str]:
        return dict(LogSettings(**settings).to_wire().configs)

    assert configs(retention_ms=60_000) == {"retention.ms": "60000", "segment.ms": "15000"}
    assert configs(retention_ms=60_000, configs={"segment.ms": "7"})["segment.ms"] == "7"
    for others in ({"retention_ms": -1}, {"retention_ms": 86_400_000}, {"retention_ms": 1000, "durability": "memory"}):
        assert "segment.ms" not in configs(**others)


@pytest.mark.parametrize("durability", ["disk", "cache"])
def test_retention_of_bytes_frees_space(start_broker: StartBroker, durability: str) -> None:
    broker = start_broker(config={"log.retention.check.interval.ms": "500"})
    create_topic(
        broker.bootstrap,
        "topic",
        ottla_durability=durability,
        retention_bytes=str(2 << 20),
        segment_bytes=str(1 << 20),
    )
    for _ in range(20):
        write(broker.bootstrap, "topic", [b"x" * 100_000] * 10)
    wait_for_start(broker, 100)
    deadline = time.monotonic() + 60
    while used(broker) > 8 << 20 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert used(broker) <= 8 << 20
    first, end = ends(broker.bootstrap, "topic")
    assert end == 200
    assert [offset for offset, _ in read(broker.bootstrap, "topic")] == list(range(first, end))


def used(broker: BrokerProcess) -> int:
    return sum(path.stat().st_size for path in broker.data.glob("logs/**/*.log"))
