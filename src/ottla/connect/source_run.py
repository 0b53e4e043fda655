"""Drives a source: poll, deliver and commit, until it is stopped.

start the producer (which fences the previous instance) -> read the position -> start the source
loop: poll the next batch while the last one is being written; then notify the source that it is committed
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from ottla.client import Producer
from ottla.client.errors import TransactionAbortedError
from ottla.connect.contract import Source, SourceBatch
from ottla.connect.delivery import Delivery
from ottla.connect.positions import ensure_position_topic, read_position, transactional_id

Report = Callable[[dict[str, Any]], None]
_TRANSACTION_TIMEOUT_MS = 60_000
_BATCH_BYTES = 512 * 1024
_RECORD_BYTES_MAX = 64 * 1024 * 1024
_ATTEMPTS = 3


async def run_source(connector: str, bootstrap: str, source: Source, stopping: asyncio.Event, report: Report) -> None:
    """Runs the source until `stopping` is set. Raises if it cannot continue."""
    await ensure_position_topic(bootstrap, connector)
    producer = Producer(
        bootstrap,
        transactional_id=transactional_id(connector),
        transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
        compression="lz4",
        batch_bytes=_BATCH_BYTES,
        max_request_bytes=_RECORD_BYTES_MAX,
        client_id=f"ottla-connect-{connector}",
    )
    async with producer:
        try:
            await source.start(await read_position(bootstrap, connector))
            await _drive(source, Delivery(connector, bootstrap, source, producer), stopping, report)
        finally:
            await source.stop()


async def _drive(source: Source, delivery: Delivery, stopping: asyncio.Event, report: Report) -> None:
    records = 0
    polling = asyncio.ensure_future(source.poll())
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        while not stopping.is_set():
            await asyncio.wait([polling, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not polling.done():
                break
            batch = polling.result()
            polling = asyncio.ensure_future(source.poll())
            if batch is not None:
                await _deliver(delivery, batch)
                await source.commit(batch.position)
                records += batch.record_count
            report({"records": records, **source.describe()})
    finally:
        for task in (polling, stopped):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _deliver(delivery: Delivery, batch: SourceBatch) -> None:
    """Retries an aborted transaction, which has left no records, with the same batch."""
    for attempt in range(_ATTEMPTS):
        try:
            await delivery.deliver(batch)
            return
        except TransactionAbortedError:
            if attempt == _ATTEMPTS - 1:
                raise
