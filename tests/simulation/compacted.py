"""The reference model of compaction: what a compacted log may lack of all that was written to it.

A record may be gone if a later record of its key is stable (below the last stable offset) and not aborted. A tombstone
may be gone once nothing older of its key is left. Everything at or above the last stable offset is still there.

A replica that was away for longer than `delete.retention.ms` may never get a tombstone, and keeps what is older, as in
Kafka. So only a log that had the tombstone itself must not lose it before the older records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ottla.broker.storage.batch_effects import marker_in
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.record import Record, decode_batch


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch with its records. `is_commit` is None unless it is a transaction marker."""

    header: BatchHeader
    records: tuple[Record, ...]
    is_commit: bool | None = None


def written_batch(header: BatchHeader, content: bytes) -> WrittenBatch:
    marker = marker_in(header, memoryview(content)) if header.is_control else None
    records = tuple(decode_batch(memoryview(content))) if header.record_count else ()
    return WrittenBatch(header, records, marker.is_commit if marker is not None else None)


@dataclass(slots=True)
class Stable:
    """The records of a log that are decided: below the last stable offset."""

    last_stable_offset: int
    aborted: set[int]
    """Offsets of records of aborted transactions."""


def stable_part(batches: Iterable[WrittenBatch], end: int) -> Stable:
    """Decides the transactions of a log from its batches alone."""
    open_records: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for batch in batches:
        header = batch.header
        if batch.is_commit is not None:
            ended = open_records.pop(header.producer_id, [])
            if not batch.is_commit:
                aborted.update(ended)
        elif header.is_transactional and not header.is_control:
            open_records.setdefault(header.producer_id, []).extend(record.offset for record in batch.records)
    return Stable(min((offsets[0] for offsets in open_records.values() if offsets), default=end), aborted)


def first_wrong(
    written: list[WrittenBatch], found: Iterable[Record], start: int, end: int, tombstones: Collection[int]
) -> tuple[int, str] | None:
    """Compares a compacted log with all that was written to it, between its start and `end`. `tombstones` are the
    offsets of those that this log has had. Returns the first offset that is wrong, and why."""
    data = {
        record.offset: record
        for batch in written
        if not batch.header.is_control
        for record in batch.records
        if start <= record.offset < end
    }
    stable = stable_part(written, end)
    control = {record.offset for batch in written if batch.header.is_control for record in batch.records}
    there: dict[int, Record] = {}
    last = -1
    for record in found:
        if record.offset <= last:
            return record.offset, f"comes after offset {last}"
        last = record.offset
        if record.offset in control or not start <= record.offset < end:
            continue
        known = data.get(record.offset)
        if known is None or (known.key, known.value, known.timestamp_ms) != (
            record.key,
            record.value,
            record.timestamp_ms,
        ):
            return record.offset, f"{record} was never written there, but {known}"
        there[record.offset] = record
    return _first_missing(data, there, stable, tombstones)


def _first_missing(
    data: dict[int, Record], there: dict[int, Record], stable: Stable, tombstones: Collection[int]
) -> tuple[int, str] | None:
    newest: dict[bytes | None, Record] = {}
    for offset, record in data.items():
        if offset >= stable.last_stable_offset:
            if offset not in there:
                return offset, f"is gone, but the last stable offset is {stable.last_stable_offset}"
        elif offset not in stable.aborted:
            newest[record.key] = record
    left: dict[bytes | None, int] = {}
    for offset, record in there.items():
        if offset < stable.last_stable_offset and offset not in stable.aborted:
            left.setdefault(record.key, offset)
    for key, record in newest.items():
        if record.offset in there:
            continue
        if record.value is not None:
            return record.offset, f"the last record of the key {key!r} is gone"
        if key in left and record.offset in tombstones:
            return left[key], f"the key {key!r} is back: its tombstone at {record.offset} is gone"
    return None
