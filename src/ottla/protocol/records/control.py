"""Control records, which a coordinator or controller writes into a log between the users' records.

key   => version: int16, type: int16
value => version: int16, coordinatorEpoch: int32        (of the two that end a transaction)
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from ottla.protocol.records.batch import BatchHeader, Buffer
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.record import Record, decode_batch, encode_batch

_KEY = Struct(">hh")
_END_TRANSACTION = Struct(">hi")


class ControlKind(IntEnum):
    """The type of a control record."""

    abort = 0
    commit = 1
    leader_change = 2
    snapshot_header = 3
    snapshot_footer = 4
    kraft_version = 5
    kraft_voters = 6
    writer_fence = 0x0771
    """Ottla's own, for the append stream: far above Kafka's types. The epoch is in the batch's producer id."""
    unknown = -1


class ControlRecord(NamedTuple):
    """A decoded control record."""

    kind: ControlKind
    version: int
    coordinator_epoch: int
    """-1 if the record does not end a transaction."""


def decode_control(record: Record) -> ControlRecord:
    """Decodes a control record. Later versions and types may append fields, so only the known ones are read."""
    if record.key is None or len(record.key) < _KEY.size:
        raise CorruptRecords("a control record's key is too short")
    version, number = _KEY.unpack_from(record.key)
    kind = ControlKind(number) if number in ControlKind._value2member_map_ else ControlKind.unknown
    if version < 0:
        raise CorruptRecords(f"a control record has the version {version}")
    if kind not in {ControlKind.abort, ControlKind.commit}:
        return ControlRecord(kind, version, -1)
    if record.value is None or len(record.value) < _END_TRANSACTION.size:
        raise CorruptRecords("the value of an end-of-transaction marker is too short")
    return ControlRecord(kind, version, _END_TRANSACTION.unpack_from(record.value)[1])


def end_of_transaction(header: BatchHeader, batch: Buffer) -> ControlRecord | None:
    """Returns the transaction marker in a control batch. None if it has another type, or if compaction has emptied
    it."""
    if header.record_count == 0:
        return None
    records = decode_batch(batch, check_crc=False)
    found = decode_control(records[0]) if records else None
    is_end = found is not None and found.kind in {ControlKind.abort, ControlKind.commit}
    return found if is_end else None


def is_writer_fence(header: BatchHeader, batch: Buffer) -> bool:
    """Reports whether a control batch is a writer fence."""
    if header.record_count == 0:
        return False
    records = decode_batch(batch, check_crc=False)
    return bool(records) and decode_control(records[0]).kind is ControlKind.writer_fence


def writer_fence_batch(producer_id: int, timestamp_ms: int) -> bytearray:
    """Returns a batch that fences earlier writers: from here on the log belongs to the writer with this id. Kafka
    clients skip it, like all control batches."""
    fence = Record(0, timestamp_ms, _KEY.pack(0, ControlKind.writer_fence), b"")
    return encode_batch([fence], producer_id=producer_id, producer_epoch=0, control=True)


def end_transaction_batch(
    kind: ControlKind, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    """Returns the marker that ends a producer's transaction in one partition."""
    if kind not in {ControlKind.abort, ControlKind.commit}:
        raise ValueError(f"{kind.name} does not end a transaction")
    marker = Record(0, timestamp_ms, _KEY.pack(0, kind), _END_TRANSACTION.pack(0, coordinator_epoch))
    return encode_batch(
        [marker], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )
