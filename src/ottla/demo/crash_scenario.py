"""Writes to three brokers while the leader is killed, then kills all brokers and reads everything back.

All of it goes through Ottla's own client.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable

from ottla.client import Admin, Consumer, Producer
from ottla.client.producer.deliveries import RecordMetadata
from ottla.demo.results import CrashResults, Event, Sample
from ottla.testing.cluster_processes import ClusterProcesses
from ottla.testing.ledger import Found, Ledger

TOPIC = "demo"
PARTITIONS = 6
IDENTITY = struct.Struct(">QQ")
VALUE_BYTES = 100
FILLER = bytes(range(VALUE_BYTES - IDENTITY.size))
BUFFER_BYTES = 16 * 1024 * 1024
SETTLE_EVERY = 500
FETCH_RECORDS_MAX = 5000
QUIET_S = 20.0
LOOK_AGAIN_S = 0.02
SAMPLE_S = 0.05
PROBE = 1000
"""Added to a partition number to get the source of the probe records, which are sent for measurement."""

Progress = Callable[[int], None]
Say = Callable[[str], None]


def value_of(source: int, sequence: int) -> bytes:
    """Returns the value of a record, which identifies its writer and its sequence number."""
    return IDENTITY.pack(source, sequence) + FILLER


class CrashScenario:
    """The first part of the demo. `kill_at` and `restart_at` are counts of acknowledged records."""

    def __init__(
        self,
        cluster: ClusterProcesses,
        story: CrashResults,
        kill_at: int,
        restart_at: int,
        on_written: Progress,
        say: Say,
    ) -> None:
        self._cluster = cluster
        self._story = story
        self._marks = {kill_at: asyncio.Event(), restart_at: asyncio.Event()}
        self._kill_at, self._restart_at = kill_at, restart_at
        self._on_written = on_written
        self._say = say
        self._ledger = Ledger()
        self._written = 0
        self._killed = asyncio.Event()
        self._began_s = 0.0

    async def run(self, on_read: Progress) -> None:
        """Writes, kills, restarts and reads back; the results go into the story."""
        async with Admin(self._cluster.bootstrap) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
            self._began_s = time.monotonic()
            self._story.samples.append(Sample(0.0, 0))
            deaths = asyncio.create_task(self._kill_the_leader(admin))
            await self._write_all()
            self._story.write_s = time.monotonic() - self._began_s
            self._story.samples.append(Sample(self._story.write_s, self._written))
            await deaths
        await self._kill_all()
        await self._read_back(on_read)

    # -- writing ------------------------------------------------------------------------------------------------------

    async def _write_all(self) -> None:
        settings = {"linger_ms": 2, "retry_backoff_ms": 20, "buffer_bytes": BUFFER_BYTES}
        async with Producer(self._cluster.bootstrap, **settings) as producer:  # type: ignore[arg-type] # by name
            records = self._story.records
            shares = [len(range(partition, records, PARTITIONS)) for partition in range(PARTITIONS)]
            await asyncio.gather(*(self._write(producer, partition, count) for partition, count in enumerate(shares)))

    async def _write(self, producer: Producer, partition: int, count: int) -> None:
        """Keeps the buffer full and enters each acknowledgement in the ledger as it arrives."""
        waiting: deque[tuple[int, asyncio.Future[RecordMetadata]]] = deque()
        for sequence in range(count):
            value = value_of(partition, sequence)
            waiting.append((sequence, await producer.enqueue(TOPIC, value, partition=partition)))
            while sequence == count // 2 and not self._killed.is_set():
                await asyncio.sleep(LOOK_AGAIN_S)  # wait, so that the kill always happens in mid-stream
                self._settle(partition, waiting)
            if sequence % SETTLE_EVERY == 0:
                await asyncio.sleep(0)  # let the partitions take turns
                self._settle(partition, waiting)
        while waiting:
            await waiting[0][1]
            self._settle(partition, waiting)

    def _settle(self, partition: int, waiting: deque[tuple[int, asyncio.Future[RecordMetadata]]]) -> None:
        settled = 0
        while waiting and waiting[0][1].done():
            sequence, future = waiting.popleft()
            self._ledger.acknowledged(partition, future.result().offset, partition, sequence)
            settled += 1
        self._written += settled
        self._on_written(settled)
        at_s = time.monotonic() - self._began_s
        if at_s - self._story.samples[-1].at_s >= SAMPLE_S:
            self._story.samples.append(Sample(at_s, self._written))
        for mark, event in self._marks.items():
            if self._written >= mark:
                event.set()

    def _note(self, text: str, at_s: float | None = None) -> None:
        self._story.events.append(Event((time.monotonic() if at_s is None else at_s) - self._began_s, text))

    # -- deaths -------------------------------------------------------------------------------------------------------

    async def _kill_the_leader(self, admin: Admin) -> None:
        story = self._story
        async with Producer(self._cluster.bootstrap, retry_backoff_ms=20) as prober:
            await asyncio.gather(*(self._probe(prober, partition, 0) for partition in range(PARTITIONS)))
            await self._marks[self._kill_at].wait()
            leaders = await _leaders(admin)
            story.victim = leaders[0]
            story.led = [partition for partition, leader in leaders.items() if leader == story.victim]
            killed_at = time.monotonic()
            await asyncio.to_thread(self._cluster.broker(story.victim).kill)
            story.acknowledged_before_kill = self._written
            self._note(f"broker {story.victim} is killed", killed_at)
            self._killed.set()
            self._say(
                f"{self._written:,} records: broker {story.victim} is killed with -9, the leader of partitions "
                f"{', '.join(map(str, story.led))}"
            )
            probes = (self._probe(prober, partition, 1, killed_at) for partition in story.led)
            await asyncio.gather(self._watch_election(admin, killed_at), *probes)
        self._say(
            f"new leaders after {story.new_leaders_s:.2f} s; the next records there are acknowledged after "
            f"{max(story.next_write_s.values()):.2f} s"
        )
        await self._marks[self._restart_at].wait()
        await self._restart(admin)

    async def _watch_election(self, admin: Admin, killed_at: float) -> None:
        while True:
            leaders = await _leaders(admin)
            if all(leaders.get(partition, self._story.victim) != self._story.victim for partition in self._story.led):
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        self._story.new_leaders_s = time.monotonic() - killed_at
        self._note("new leaders")

    async def _probe(self, prober: Producer, partition: int, sequence: int, killed_at: float | None = None) -> None:
        source = PROBE + partition
        sent = await prober.send(TOPIC, value_of(source, sequence), partition=partition)
        self._ledger.acknowledged(partition, sent.offset, source, sequence)
        self._story.probes += 1
        if killed_at is not None:
            self._story.next_write_s[partition] = time.monotonic() - killed_at

    async def _restart(self, admin: Admin) -> None:
        story = self._story
        started = time.monotonic()
        await asyncio.to_thread(self._cluster.broker(story.victim).start)
        story.restart_s = time.monotonic() - started
        self._note(f"broker {story.victim} has restarted")
        self._say(f"{self._written:,} records: broker {story.victim} has restarted and follows")
        while True:
            if await _all_in_sync(admin):
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        story.in_sync_s = time.monotonic() - started
        self._note("in sync again")
        self._say(f"{self._written:,} records: broker {story.victim} has everything again")

    async def _kill_all(self) -> None:
        """Kills all brokers at once, so that only their disks survive, and restarts them."""
        self._say("all three brokers are killed with -9, and started again")
        for broker in self._cluster.brokers:
            await asyncio.to_thread(broker.kill)
        started = time.monotonic()
        await asyncio.to_thread(self._cluster.start)
        self._story.outage_s = time.monotonic() - started

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _read_back(self, on_read: Progress) -> None:
        story = self._story
        started = time.monotonic()
        found: dict[int, list[Found]] = {partition: [] for partition in range(PARTITIONS)}
        async with Consumer(self._cluster.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:
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
            story.findings.add(self._ledger.compare(partition, records_found))


async def _leaders(admin: Admin) -> dict[int, int]:
    topic = await admin.describe_partitions(TOPIC)
    return {each.index: each.leader for each in topic if each.leader is not None}


async def _all_in_sync(admin: Admin) -> bool:
    return all(len(each.isr) == len(each.replicas) for each in await admin.describe_partitions(TOPIC))
