"""Writes with Ottla's own client, by record and by Arrow table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.bench.suite.loads import BUFFER_BYTES, LATENCY_EVERY, Phase, ProducerLoad, ProducerResult, wait_until
from ottla.bench.suite.payloads import is_stamped, prepare, stamped
from ottla.bench.suite.settings import Configuration, count, number
from ottla.client import Producer
from ottla.client.producer.deliveries import RecordMetadata

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

ROWS_A_TABLE = 10_000
TABLES = 8
TABLES_UNDER_WAY = 4
REQUEST_BYTES_MIN = 1 << 20


def producer_settings(configuration: Configuration) -> dict[str, Any]:
    """Returns the arguments of `Producer` for a configuration."""
    batch_bytes = count(configuration, "producer.batch_bytes")
    is_sync = configuration["producer.mode"] == "sync"
    return {
        "acks": configuration["producer.acks"],
        "idempotence": configuration["producer.idempotence"],
        "max_in_flight": count(configuration, "producer.in_flight"),
        "batch_bytes": batch_bytes,
        "buffer_bytes": max(BUFFER_BYTES, batch_bytes),
        "max_request_bytes": max(REQUEST_BYTES_MIN, batch_bytes),
        "linger_ms": 0 if is_sync else number(configuration, "producer.linger_ms"),
        "compression": configuration["producer.compression"],
    }


def run_on_uvloop(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on uvloop, or on asyncio's loop if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    found: T = uvloop.run(work)
    return found


def produce(load: ProducerLoad) -> ProducerResult:
    """Writes the load, on an event loop of its own."""
    return run_on_uvloop(_produce(load))


async def _produce(load: ProducerLoad) -> ProducerResult:
    produced = ProducerResult()
    async with Producer(load.bootstrap, **producer_settings(load.configuration)) as producer:
        await producer.partitions(load.topic)
        by_table = load.configuration["driver"] == "ottla-arrow"
        writer = _Tables(load, producer, produced) if by_table else _Records(load, producer, produced)
        warm_up, measured = load.phases()
        wait_until(load.start_at_ns)
        await writer.write(warm_up)
        await producer.flush()
        warmed_up = producer.acknowledged_count
        produced.latencies.clear()
        produced.value_bytes = 0
        produced.begin_ns = time.monotonic_ns()
        await writer.write(measured)
        await producer.flush()
        produced.end_ns = time.monotonic_ns()
        produced.sent_in_all = producer.acknowledged_count
        produced.records = produced.sent_in_all - warmed_up
        produced.has_rate = measured.rate > 0
        produced.offered = measured.offered() if measured.rate else produced.records
    return produced


class _Records:
    def __init__(self, load: ProducerLoad, producer: Producer, produced: ProducerResult) -> None:
        self._load = load
        self._producer = producer
        self._produced = produced
        self._records = cycle(prepare(load.configuration, seed=load.client))
        self._stamped = is_stamped(load.configuration)

    async def write(self, phase: Phase) -> None:
        if self._load.is_sync or phase.rate:
            await self._timed(phase)
        else:
            await self._streaming(phase)

    async def _streaming(self, phase: Phase) -> None:
        deadline_ns = phase.deadline_ns(time.monotonic_ns())
        left = phase.records_max
        while left > 0 and (now_ns := time.monotonic_ns()) < deadline_ns:
            size = min(LATENCY_EVERY, left)
            first = await self._enqueue(now_ns)
            first.add_done_callback(partial(self._on_done, now_ns))
            for _ in range(size - 1):
                await self._enqueue(now_ns)
            left -= size

    async def _timed(self, phase: Phase) -> None:
        """Sends records one after another, or each at its due time, from which the latency then counts."""
        begin_ns = time.monotonic_ns()
        deadline_ns = phase.deadline_ns(begin_ns)
        end = phase.offered() if phase.rate else phase.records_max
        sent = 0
        while sent < end and (now_ns := time.monotonic_ns()) < deadline_ns:
            due_ns = phase.due_ns(begin_ns, sent) if phase.rate else now_ns
            if due_ns > now_ns:
                await asyncio.sleep((due_ns - now_ns) / 1e9)
                continue
            sent += 1
            future = await self._enqueue(due_ns)
            future.add_done_callback(partial(self._on_done, due_ns))
            if self._load.is_sync:
                await future

    async def _enqueue(self, due_ns: int) -> asyncio.Future[RecordMetadata]:
        key, value = next(self._records)
        self._produced.value_bytes += len(value)
        return await self._producer.enqueue(self._load.topic, stamped(value, due_ns) if self._stamped else value, key)

    def _on_done(self, since_ns: int, future: asyncio.Future[RecordMetadata]) -> None:
        """Records a latency. Failures are raised by the flush."""
        if not future.cancelled() and future.exception() is None:
            self._produced.latencies.add((time.monotonic_ns() - since_ns) // 1000)


class _Tables:
    """Writes Arrow tables. Latencies are those of whole tables."""

    def __init__(self, load: ProducerLoad, producer: Producer, produced: ProducerResult) -> None:
        self._load = load
        self._producer = producer
        self._produced = produced
        self._tables = cycle(_tables_of(load.configuration, load.client))
        self._under_way = 1 if load.is_sync else TABLES_UNDER_WAY

    async def write(self, phase: Phase) -> None:
        deadline_ns = phase.deadline_ns(time.monotonic_ns())
        self._left = phase.records_max
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._under_way):
                tasks.create_task(self._send_until(deadline_ns))

    async def _send_until(self, deadline_ns: int) -> None:
        while self._left > 0 and (now_ns := time.monotonic_ns()) < deadline_ns:
            table, value_bytes = next(self._tables)
            if table.num_rows > self._left:
                value_bytes = value_bytes * self._left // table.num_rows
                table = table.slice(0, self._left)
            self._left -= table.num_rows
            self._produced.value_bytes += value_bytes
            await self._producer.send_table(self._load.topic, table)
            self._produced.latencies.add((time.monotonic_ns() - now_ns) // 1000, table.num_rows)


def _tables_of(configuration: Configuration, seed: int) -> list[tuple[pyarrow.Table, int]]:
    import pyarrow

    rows = count(configuration, "producer.batch_records") or ROWS_A_TABLE
    records = cycle(prepare(configuration, seed))
    found = []
    for _ in range(TABLES):
        chosen = [next(records) for _ in range(rows)]
        columns = {"value": pyarrow.array([each.value for each in chosen], pyarrow.binary())}
        if chosen[0].key is not None:
            columns["key"] = pyarrow.array([each.key for each in chosen], pyarrow.binary())
        found.append((pyarrow.table(columns), sum(len(each.value) for each in chosen)))
    return found
