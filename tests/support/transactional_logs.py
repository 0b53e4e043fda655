"""Transactions in a log, and a reader of committed records that filters as a broker's client does."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.memory_log import MemoryLog
from ottla.protocol.records.batch import read_header, stamp
from ottla.protocol.records.control import ControlKind, decode_control, end_transaction_batch
from ottla.protocol.records.record import Record, decode_batch, encode_batch

AnyLog = FileLog | MemoryLog


def append_in_transaction(
    log: AnyLog, rows: Iterable[tuple[bytes, bytes | None]], producer: tuple[int, int, int], *, leader_epoch: int = 1
) -> int:
    """Appends a batch and returns its offset. `producer` is its id, its epoch and the first sequence."""
    records = [Record(place, log.shared.clock.now_ms(), key, value) for place, (key, value) in enumerate(rows)]
    batch = encode_batch(
        records,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=True,
    )
    return append(log, batch, leader_epoch)


def end_transaction(
    log: AnyLog, producer: tuple[int, int], *, commit: bool, coordinator_epoch: int = 0, leader_epoch: int = 1
) -> int:
    """Appends a marker and returns its offset."""
    marker = end_transaction_batch(
        ControlKind.commit if commit else ControlKind.abort,
        producer_id=producer[0],
        producer_epoch=producer[1],
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=log.shared.clock.now_ms(),
    )
    return append(log, marker, leader_epoch)


def append(log: AnyLog, batch: bytearray, leader_epoch: int) -> int:
    offset = log.end_offset
    assert log.refusal(len(batch)) is None
    stamp(batch, offset, max(leader_epoch, log.epochs.latest))  # epochs never decrease
    log.append(read_header(batch), memoryview(batch))
    return offset


def stable_offset(log: AnyLog) -> int:
    log.transactions.advance_watermark(log.acknowledged_end)
    return log.transactions.last_stable_offset(log.start_offset)


def committed_records(log: AnyLog, batches: Iterable[bytes], pieces_of: int = 1000) -> list[Record]:
    """Returns the records that a read_committed reader keeps of these batches, fetched a few at a time. It gets the
    aborted transactions of each fetch separately and forgets them between fetches."""
    stable = stable_offset(log)
    readable = [batch for batch in batches if read_header(batch).next_offset <= stable]
    found: list[Record] = []
    for first in range(0, len(readable), pieces_of):
        found += _committed_in(log, readable[first : first + pieces_of])
    return found


def _committed_in(log: AnyLog, piece: list[bytes]) -> list[Record]:
    begin, end = read_header(piece[0]).base_offset, read_header(piece[-1]).next_offset
    waiting = sorted(log.transactions.aborted.between(begin, end), key=lambda each: each.first_offset)
    aborted: set[int] = set()
    found: list[Record] = []
    for batch in piece:
        header = read_header(batch)
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborted.add(waiting.pop(0).producer_id)
        if header.is_control:
            if header.record_count and decode_control(decode_batch(batch)[0]).kind is ControlKind.abort:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            found += decode_batch(batch)
    return found
