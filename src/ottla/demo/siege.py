"""Writes through Ottla's own client while the broker is killed and started again, then reads everything back."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.client import Admin, Consumer, Producer
from ottla.client.deliveries import RecordMetadata
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.ledger import Findings, Found, Ledger

TOPIC = "demo"
PARTITIONS = 4
IDENTITY = struct.Struct(">QQ")
VALUE_BYTES = 100
FILLER = bytes(range(VALUE_BYTES - IDENTITY.size))
FETCH_RECORDS_MAX = 5000
QUIET_S = 20.0

Progress = Callable[[int], None]


@dataclass(slots=True)
class Story:
    """What happened, in numbers."""

    records: int
    write_s: float = 0.0
    read_s: float = 0.0
    acknowledged_before_kill: int = 0
    recovery_s: float = 0.0
    findings: Findings = field(default_factory=Findings)

    @property
    def proven(self) -> bool:
        """The kill came in the middle, everything was acknowledged, and everything acknowledged is there."""
        in_the_middle = 0 < self.acknowledged_before_kill < self.records
        complete = self.findings.acknowledged == self.findings.read == self.records
        return in_the_middle and complete and self.findings.ok


def value_of(partition: int, sequence: int) -> bytes:
    return IDENTITY.pack(partition, sequence) + FILLER


async def run(broker: BrokerProcess, story: Story, kill_at: int, on_written: Progress, on_read: Progress) -> None:
    ledger = Ledger()
    middle = asyncio.Event()

    def on_acknowledged(count: int) -> None:
        on_written(count)
        if ledger.count() >= kill_at:
            middle.set()

    async with Admin(broker.bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS)
    started = time.monotonic()
    death = asyncio.create_task(_kill_in_the_middle(broker, ledger, story, middle))
    async with Producer(broker.bootstrap, linger_ms=2, retry_backoff_ms=20) as producer:
        shares = [len(range(partition, story.records, PARTITIONS)) for partition in range(PARTITIONS)]
        await asyncio.gather(
            *(_write(producer, partition, count, ledger, on_acknowledged) for partition, count in enumerate(shares))
        )
    await death
    story.write_s = time.monotonic() - started
    await _read_back(broker, ledger, story, on_read)


async def _write(producer: Producer, partition: int, count: int, ledger: Ledger, on_written: Progress) -> None:
    """Keeps the buffer full; enters each acknowledgement in the ledger as it comes."""
    first = await producer.send(TOPIC, value_of(partition, 0), partition=partition)
    ledger.acknowledged(partition, first.offset, partition, 0)
    on_written(1)
    waiting: deque[tuple[int, asyncio.Future[RecordMetadata]]] = deque()

    def settle() -> None:
        settled = 0
        while waiting and waiting[0][1].done():
            sequence, future = waiting.popleft()
            ledger.acknowledged(partition, future.result().offset, partition, sequence)
            settled += 1
        on_written(settled)

    for sequence in range(1, count):
        waiting.append((sequence, await producer.enqueue(TOPIC, value_of(partition, sequence), partition=partition)))
        if sequence % 1000 == 0:
            settle()
    while waiting:
        await waiting[-1][1]
        settle()


async def _kill_in_the_middle(broker: BrokerProcess, ledger: Ledger, story: Story, middle: asyncio.Event) -> None:
    await middle.wait()
    await asyncio.to_thread(broker.kill)
    story.acknowledged_before_kill = ledger.count()
    started = time.monotonic()
    await asyncio.to_thread(broker.start)
    story.recovery_s = time.monotonic() - started


async def _read_back(broker: BrokerProcess, ledger: Ledger, story: Story, on_read: Progress) -> None:
    started = time.monotonic()
    found: dict[int, list[Found]] = {partition: [] for partition in range(PARTITIONS)}
    async with Consumer(broker.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:
        partitions = [(TOPIC, partition) for partition in range(PARTITIONS)]
        consumer.assign(partitions)
        left = sum((await consumer.end_offsets(partitions)).values())
        while left > 0:
            records = await consumer.fetch_records(FETCH_RECORDS_MAX, timeout_ms=QUIET_S * 1000)
            if not records:
                break
            for record in records:
                value = record.value or b""
                source, sequence = IDENTITY.unpack_from(value)
                if value != value_of(source, sequence):
                    story.findings.misplaced += 1
                    story.findings.note(f"partition {record.partition}: offset {record.offset} has another value")
                found[record.partition].append((record.offset, source, sequence))
            left -= len(records)
            on_read(len(records))
    story.read_s = time.monotonic() - started
    for partition, records_found in found.items():
        story.findings.add(ledger.compare(partition, records_found))
