"""The committed records of a partition, byte for byte, for comparison with logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead, Damage
from ottla.broker.storage.file_log import FileLog
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import BatchHeader, split_batches
from tests.simulation.compacted import WrittenBatch, first_wrong, written_batch

READ_BYTES_MAX = 1 << 20


class UnreadableLogError(Exception):
    """A log cannot be read where it should have records."""


class DamagedLogError(UnreadableLogError):
    """A log cannot be read because its bytes are corrupted."""


def read_batches(log: AnyLog, offset: int, upto: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Reads whole batches from the one that holds the offset, without side effects on the log."""
    while offset < upto:
        part = _read(log, offset, upto)
        if isinstance(part, Refused):
            kind = DamagedLogError if part.error is ErrorCode.corrupt_message else UnreadableLogError
            raise kind(f"offset {offset}: {part.error.name} {part.message}")
        if part.next_offset <= offset:
            raise UnreadableLogError(f"there is nothing at offset {offset}")
        for header, batch in split_batches(memoryview(b"".join(part.buffers))):
            yield header, bytes(batch)
        offset = part.next_offset


def _read(log: AnyLog, offset: int, upto: int) -> Slice | Refused:
    part = log.read(offset, READ_BYTES_MAX, upto)
    if not isinstance(part, ColdRead):
        return part
    assert isinstance(log, FileLog)
    log.damages.record = _ignore  # type: ignore[method-assign] # the read must have no side effect
    try:
        return part.run()
    finally:
        del log.damages.record
        part.ended()


def _ignore(damage: Damage) -> None: ...


@dataclass
class CommittedBatch:
    epoch: int
    end: int
    content: bytes


@dataclass
class Committed:
    """The committed records of one partition. With `may_delete`, a log may begin anywhere up to the committed end; with
    `is_compacted`, it may lack records."""

    end: int = 0
    may_delete: bool = False
    is_compacted: bool = False
    written: list[WrittenBatch] = field(default_factory=list)
    """With their records, in a compacted log."""
    tombstones: dict[AnyLog, set[int]] = field(default_factory=dict)
    """Offsets of the tombstones that were appended to each log of a compacted topic."""
    batches: dict[int, CommittedBatch] = field(default_factory=dict)
    """Batches by first offset, in ascending order."""

    def extend(self, log: AnyLog, upto: int) -> None:
        for header, content in read_batches(log, max(self.end, log.start_offset), upto):
            if header.base_offset >= self.end:
                self.batches[header.base_offset] = CommittedBatch(header.leader_epoch, header.next_offset, content)
                if self.is_compacted:
                    self.written.append(written_batch(header, content))
        self.end = max(self.end, upto)

    def first_missing(self, log: AnyLog, *, may_be_damaged: bool = False) -> tuple[int, str] | None:
        """Returns the first offset that is missing or different in the log, and why; None if there is none. Detected
        damage does not count as missing, since readers are redirected to other replicas."""
        if log.end_offset < self.end:
            upto, missing = log.end_offset, (log.end_offset, f"the log ends at {log.end_offset}")
        else:
            upto, missing = self.end, None
        if not self.may_delete and self.batches and log.start_offset > min(self.batches):
            return min(self.batches), f"the log begins at {log.start_offset}"
        if self.batches and log.start_offset > self.end:
            return min(self.batches), f"the log begins at {log.start_offset}, above everything committed"
        place = log.start_offset
        try:
            if self.is_compacted:
                return self._first_wrong(log, upto) or missing
            for header, content in read_batches(log, place, upto):
                place = header.base_offset
                known = self.batches.get(place)
                if known is None or known.content != content:
                    return place, f"another batch, of epoch {header.leader_epoch}"
                place = header.next_offset
        except UnreadableLogError as error:
            is_allowed = may_be_damaged and isinstance(error, DamagedLogError)
            return missing if is_allowed else (place, str(error))
        return missing

    def _first_wrong(self, log: AnyLog, upto: int) -> tuple[int, str] | None:
        begin = log.start_offset
        found = [written_batch(*each).records for each in read_batches(log, begin, upto)] if begin < upto else []
        records = (record for records in found for record in records)
        return first_wrong(self.written, records, begin, upto, self.tombstones.get(log, ()))

    def forget_from(self, offset: int) -> None:
        self.written = [batch for batch in self.written if batch.header.next_offset <= offset]
        self.batches = {base: batch for base, batch in self.batches.items() if batch.end <= offset}
        self.end = min(self.end, offset)

    def begin_again(self, offset: int) -> None:
        """Forgets all earlier batches."""
        self.batches.clear()
        self.written.clear()
        self.end = offset
