"""Replays the log of a partition into a coordinator, from the log start to the log end at the time this broker became
leader.

The log is read in slices, so that neither the memory use nor the time without a turn of the event loop grows with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from ottla.broker.partition.partition import Partition
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import Batch, split_batches
from ottla.protocol.records.bridge import decode_records
from ottla.protocol.records.control import ControlKind, decode_control
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.record import Record, decode_batch

log = logging.getLogger("ottla.coordinators")

SLICE_BYTES = 64 * 1024
RECORDS_A_TURN = 50
"""Records replayed before the event loop gets a turn. A record takes about twenty microseconds, so this is a
millisecond."""


class Replayable(Protocol):
    """The interface of a machine for loading."""

    @property
    def unreadable(self) -> list[str]:
        """Errors of records that could not be decoded. Only the first ones are kept."""
        ...

    @property
    def skipped(self) -> Counter[int]:
        """Number of records of unknown kinds, by kind."""
        ...

    def replay(self, key: bytes | None, value: bytes | None, producer_id: int | None = None) -> None:
        """Applies a record. `producer_id` is set if the record is part of a transaction."""

    def replay_marker(self, producer_id: int, *, is_committed: bool) -> None:
        """Applies the end of a producer's transaction."""
        ...


async def replay_log(partition: Partition, machine: Replayable, upto: int) -> Refused | None:
    """Replays the log up to `upto`. Refused if the log cannot be read or has been replaced."""
    offset = partition.log.start_offset
    while offset < upto:
        part = await _read(partition, offset)
        if isinstance(part, Refused):
            if part.error is ErrorCode.offset_out_of_range and offset < partition.log.start_offset:
                offset = partition.log.start_offset  # records were deleted in the meantime
                continue
            return part
        if part.next_offset <= offset:
            return Refused(ErrorCode.kafka_storage_error, f"there is nothing to read at offset {offset}")
        await _replay(part, machine, offset)
        offset = part.next_offset
    _report(partition, machine)
    return None


async def _read(partition: Partition, offset: int) -> Slice | Refused:
    """Reads records above the high watermark too: nothing is served before the watermark covers them."""
    found = partition.read_as_follower(offset, SLICE_BYTES)
    return await partition.read_cold(found) if isinstance(found, ColdRead) else found


async def _replay(part: Slice, machine: Replayable, from_offset: int) -> None:
    left = RECORDS_A_TURN
    for buffer in part.buffers:
        for batch in split_batches(buffer):
            for record in _records(batch, machine, from_offset):
                producer_id = batch.header.producer_id if batch.header.is_transactional else None
                machine.replay(record.key, record.value, producer_id)
                left -= 1
                if left == 0:
                    left = RECORDS_A_TURN
                    await asyncio.sleep(0)
    await asyncio.sleep(0)


def _records(batch: Batch, machine: Replayable, from_offset: int) -> Iterator[Record]:
    """Yields the records of a batch and applies its markers. The log has verified the checksum; a batch that still
    cannot be opened is skipped, like a record that cannot be read."""
    try:
        if not batch.header.is_control:
            yield from decode_records([batch], from_offset=from_offset, check_crc=False)
            return
        for record in decode_batch(batch.data, check_crc=False):
            kind = decode_control(record).kind
            if kind in (ControlKind.commit, ControlKind.abort):
                machine.replay_marker(batch.header.producer_id, is_committed=kind is ControlKind.commit)
    except CorruptRecords as error:
        log.error("a batch at offset %d cannot be read: %s", batch.header.base_offset, error)


def _report(partition: Partition, machine: Replayable) -> None:
    name = f"{partition.topic.name}-{partition.index}"
    for why in machine.unreadable:
        log.error("%s contains an unreadable record: %s", name, why)
    if machine.skipped:
        log.warning("%s holds records of kinds that are not known here: %s", name, dict(machine.skipped))
