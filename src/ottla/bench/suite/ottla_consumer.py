"""Reads with Ottla's own client, by record and by Arrow table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.bench.suite.loads import READ_TIMEOUT_S, ConsumerLoad, ConsumerResult, wait_until
from ottla.bench.suite.ottla_producer import run_on_uvloop
from ottla.bench.suite.payloads import is_stamped, stamp_of
from ottla.bench.suite.read_progress import ReadProgress
from ottla.client import Consumer

if TYPE_CHECKING:
    import pyarrow

    from ottla.client.consumer.types import ConsumerRecord

POLL_MS = 20
RECORDS_A_CALL = 2_000


def consume(load: ConsumerLoad) -> ConsumerResult:
    """Reads from the given offsets on, on an event loop of its own."""
    return run_on_uvloop(_consume(load))


async def _consume(load: ConsumerLoad) -> ConsumerResult:
    by_table = load.configuration["driver"] == "ottla-arrow"
    async with Consumer(load.bootstrap, fetch_max_wait_ms=100) as consumer:
        wait_until(load.start_at_ns)
        consumer.assign([(load.topic, index) for index in load.offsets])
        for index, offset in load.offsets.items():
            consumer.seek((load.topic, index), offset)
        found = ConsumerResult(begin_ns=time.monotonic_ns())
        progress = ReadProgress(load, time.monotonic())
        while not progress.is_done():
            if by_table:
                table = await consumer.fetch_table(timeout_ms=POLL_MS)
                _note_table(table, load, found, progress)
            else:
                records = await consumer.fetch_records(RECORDS_A_CALL, timeout_ms=POLL_MS)
                _note_records(records, load, found, progress)
    return found


def _note_records(
    records: Sequence[ConsumerRecord], load: ConsumerLoad, found: ConsumerResult, progress: ReadProgress
) -> None:
    now_ns = time.monotonic_ns()
    if not records:
        progress.nothing_came(time.monotonic(), READ_TIMEOUT_S)
        return
    progress.advance({record.partition: record.offset + 1 for record in records}, time.monotonic())
    found.note(now_ns, len(records), sum(len(record.value or b"") for record in records))
    if is_stamped(load.configuration):
        for record in records:
            due_ns = stamp_of(record.value or b"")
            if due_ns >= load.measured_from_ns:
                found.latencies.add((now_ns - due_ns) // 1000)


def _note_table(table: pyarrow.Table, load: ConsumerLoad, found: ConsumerResult, progress: ReadProgress) -> None:
    from pyarrow import compute

    now_ns = time.monotonic_ns()
    if not table.num_rows:
        progress.nothing_came(time.monotonic(), READ_TIMEOUT_S)
        return
    last = table.group_by("partition").aggregate([("offset", "max")]).to_pydict()
    ends = {index: offset + 1 for index, offset in zip(last["partition"], last["offset_max"], strict=True)}
    progress.advance(ends, time.monotonic())
    found.note(now_ns, table.num_rows, compute.sum(compute.binary_length(table["value"])).as_py() or 0)
