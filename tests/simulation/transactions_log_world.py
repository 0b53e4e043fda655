"""Logs with transactions on a simulated disk, beside the list of all batches that they must hold.

A log's transaction state must equal the result of a simple scan of those batches after any crash, truncation and
removal of old records: the open transactions and their starts, the aborted ones, and the last stable offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.broker.storage.truncation import Truncation
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.control import ControlKind, end_of_transaction, end_transaction_batch
from ottla.protocol.records.record import Record, encode_batch
from tests.simulation.log_world import LogModel, LogWorld, read_all
from tests.support.transactional_logs import append, committed_records, stable_offset

PLAIN = 7
TRANSACTIONAL = (21, 22, 23)


class Span(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of its last batch, or of its marker."""


@dataclass
class Walked:
    """The transaction state found by a simple scan of a list of batches."""

    open: dict[int, Span] = field(default_factory=dict)
    aborted: list[Span] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    fences: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The offset of the last marker and the highest coordinator epoch, by producer."""

    @classmethod
    def over(cls, batches: list[bytes]) -> Walked:
        walked = cls()
        for batch in batches:
            header = read_header(batch)
            name, epoch = header.producer_id, header.producer_epoch
            if epoch > walked.epochs.get(name, -1):
                walked.epochs[name], walked.sequences[name] = epoch, -1
            if header.is_control:
                walked._end(name, header.base_offset, batch)
                continue
            walked.sequences[name] = header.last_sequence
            if header.is_transactional:
                begun = walked.open.get(name, Span(name, header.base_offset, 0))
                walked.open[name] = begun._replace(last_offset=header.last_offset)
        return walked

    def _end(self, name: int, offset: int, batch: bytes) -> None:
        found = end_of_transaction(read_header(batch), batch)
        assert found is not None
        fence = max(found.coordinator_epoch, self.fences.get(name, (0, -1))[1])
        self.fences[name] = offset, fence
        begun = self.open.pop(name, None)
        if begun is not None and found.kind is ControlKind.abort:
            self.aborted.append(begun._replace(last_offset=offset))


class TransactionsWorld(LogWorld):
    def append(self, model: LogModel, size: int) -> bool:
        random, log = self.random, self.log(model)
        known = Walked.over(model.batches)
        name = random.choice((PLAIN, *TRANSACTIONAL))
        epoch = max(known.epochs.get(name, 0), 0)
        if name != PLAIN and random.random() < 0.35:
            batch = end_transaction_batch(
                random.choice((ControlKind.commit, ControlKind.abort)),
                producer_id=name,
                producer_epoch=epoch + random.choice((0, 1)),
                coordinator_epoch=random.choice((0, 1, 5)),
                timestamp_ms=self.clock.now_ms(),
            )
        else:
            value = random.randbytes(size)
            batch = encode_batch(
                [Record(0, self.clock.now_ms(), None, value), Record(1, self.clock.now_ms(), None, value[:10])],
                producer_id=name,
                producer_epoch=epoch,
                base_sequence=known.sequences.get(name, -1) + 1,
                transactional=name != PLAIN,
            )
        if log.refusal(len(batch)) is not None:
            return False
        append(log, batch, self.epoch)
        model.batches.append(bytes(batch))
        return True

    def truncate(self, model: LogModel) -> None:
        """Truncates to any offset: after an unclean election also below the acknowledged end."""
        log = self.log(model)
        self.settle()
        ends = [read_header(batch).base_offset for batch in model.batches]
        choices = [end for end in ends if end >= log.start_offset]
        if not choices or log.truncating:
            return
        offset = self.random.choice(choices)
        done: list[OSError | None] = []
        assert self.store.flusher is not None
        Truncation(log, self.store.flusher, offset, done.append).begin()
        for _ in range(50):
            if done:
                break
            self.settle()
        assert done == [None]
        model.batches = [batch for batch in model.batches if read_header(batch).next_offset <= log.end_offset]
        model.acknowledged_end = min(model.acknowledged_end, log.end_offset)
        self.check_transactions(model)

    def _check_log(self, model: LogModel) -> None:
        log = self.log(model)
        acknowledged = model.acknowledged_end if model.is_disk or self._kept == "all" else 0
        assert log.end_offset >= acknowledged
        model.batches = [batch for batch in model.batches if read_header(batch).next_offset <= log.end_offset]
        assert read_all(log) == [b for b in model.batches if read_header(b).next_offset > log.start_offset]
        model.acknowledged_end = log.acknowledged_end
        self.check_transactions(model)

    def check_transactions(self, model: LogModel) -> None:
        log, start = self.log(model), self.log(model).start_offset
        walked = Walked.over(model.batches)
        found = {each.producer_id: each for each in log.transactions.open_transactions()}
        assert set(found) <= set(walked.open)
        for name, span in walked.open.items():
            if span.last_offset >= start:  # else nothing is left of it, and it may be forgotten
                left = _first_left(model.batches, span, start)
                # After a deleted segment or a late state file, the first offset may be that of the remaining part.
                assert span.first_offset <= found[name].first_offset <= left
                assert found[name].producer_epoch == walked.epochs[name]
        for name, (marker_offset, coordinator_epoch) in walked.fences.items():
            known = log.transactions.get(name)
            assert known is not None or marker_offset < start
            if known is not None and marker_offset >= start:
                assert known.coordinator_epoch <= coordinator_epoch
                assert known.epoch == walked.epochs[name]
        self._check_readers(model, walked)

    def _check_readers(self, model: LogModel, walked: Walked) -> None:
        log, start = self.log(model), self.log(model).start_offset
        # A transaction below the log start does not hold back readers.
        first_open = min((span.first_offset for span in walked.open.values()), default=log.acknowledged_end)
        left = [_first_left(model.batches, s, start) for s in walked.open.values() if s.last_offset >= start]
        highest = max(min(left, default=log.acknowledged_end), start)
        stable = stable_offset(log)
        assert min(max(first_open, start), highest) <= stable <= highest
        aborted = [span for span in walked.aborted if span.last_offset >= start]
        readable = [b for b in read_all(log) if read_header(b).next_offset <= stable]
        expected = [
            record_offset
            for batch in readable
            if not read_header(batch).is_control and not _is_in(batch, aborted)
            for record_offset in range(read_header(batch).base_offset, read_header(batch).next_offset)
        ]
        for pieces_of in (1, 5, 1000):
            assert [record.offset for record in committed_records(log, readable, pieces_of)] == expected
        for name, sequence in walked.sequences.items():
            headers = [read_header(batch) for batch in read_all(log)]
            is_left = any((h.producer_id, h.producer_epoch) == (name, walked.epochs[name]) for h in headers)
            is_numbered = any(
                h.producer_id == name and h.last_sequence == sequence for h in headers if not h.is_control
            )
            entry = log.producers.get(name)
            assert entry is not None or not is_left
            if entry is not None and is_left:
                assert entry.epoch == walked.epochs[name]
                assert entry.batches[-1].last_sequence == sequence or not is_numbered


def _first_left(batches: list[bytes], span: Span, start: int) -> int:
    headers = (read_header(batch) for batch in batches)
    return next(
        header.base_offset
        for header in headers
        if header.producer_id == span.producer_id
        and header.base_offset >= span.first_offset
        and header.next_offset > start
    )


def _is_in(batch: bytes, aborted: list[Span]) -> bool:
    header = read_header(batch)
    return header.is_transactional and any(
        span.producer_id == header.producer_id and span.first_offset <= header.base_offset < span.last_offset
        for span in aborted
    )
