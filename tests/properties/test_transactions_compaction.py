"""Compaction of a log with transactions, compared with a list of committed records.

After any compaction, restart or rebuild, a read_committed reader with fetches of any size finds the last committed
value of each key and nothing aborted, and the open transactions are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.compacted_logs import CompactedLog
from tests.support.transactional_logs import append_in_transaction, committed_records, end_transaction, stable_offset

KEYS = [b"a", b"b", b"c"]


@dataclass(frozen=True)
class Append:
    producer: int
    """Negative: without a transaction."""
    keys: list[bytes]


@dataclass(frozen=True)
class End:
    producer: int
    commit: bool
    bumps_epoch: bool


@dataclass(frozen=True)
class Compact:
    after_ms: int


@dataclass(frozen=True)
class Restart:
    loses_state: bool


Step = Append | End | Compact | Restart
appends = st.builds(Append, st.integers(-1, 2), st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
ends = st.builds(End, st.integers(0, 2), st.booleans(), st.booleans())
steps = st.one_of(
    appends, appends, ends, ends, st.builds(Compact, st.sampled_from([0, 500, 3000])), st.builds(Restart, st.booleans())
)


@dataclass
class Story:
    log: CompactedLog
    number: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[tuple[int, bytes, bytes]]] = field(default_factory=dict)
    """Offset, key and value of the records of each open transaction."""
    committed: list[tuple[int, bytes, bytes]] = field(default_factory=list)

    def play(self, told: list[Step]) -> None:
        for step in told:
            match step:
                case Append():
                    self._append(step)
                case End():
                    self._end(step)
                case Compact():
                    self.log.bench.clock.advance(step.after_ms)
                    self.log.roll()
                    self._note_rolled()
                    self.log.compact()
                    self.check()
                case Restart():
                    self._restart(step.loses_state)
                    self.check()

    def _note_rolled(self) -> None:
        last = self.log.appended[-1] if self.log.appended else None
        if last is not None and last.key is not None and last.value is not None:
            entry = last.offset, last.key, last.value
            if entry not in self.committed:
                self.committed.append(entry)

    def _append(self, step: Append) -> None:
        rows: list[tuple[bytes, bytes | None]] = []
        for key in step.keys:
            self.number += 1
            rows.append((key, b"%d" % self.number))
        base = self.log.bench.log().end_offset
        written = [(base + place, key, value) for place, (key, value) in enumerate(rows) if value is not None]
        if step.producer < 0:
            self.log.append(rows)
            self.committed += written
            return
        sequence = self.sequences.get(step.producer, 0)
        self.sequences[step.producer] = sequence + len(rows)
        producer = step.producer, self.epochs.get(step.producer, 0), sequence
        append_in_transaction(self.log.bench.log(), rows, producer)
        self.open.setdefault(step.producer, []).extend(written)

    def _end(self, step: End) -> None:
        epoch = self.epochs.get(step.producer, 0) + step.bumps_epoch
        if step.bumps_epoch:
            self.epochs[step.producer], self.sequences[step.producer] = epoch, 0
        end_transaction(self.log.bench.log(), (step.producer, epoch), commit=step.commit)
        written = self.open.pop(step.producer, [])
        if step.commit:
            self.committed += written

    def _restart(self, loses_state: bool) -> None:
        bench = self.log.bench
        bench.settle()
        is_journaled = bench.log().is_journaled
        if loses_state:
            bench.flush()
            if bench.disk.files.exists(bench.path("state")):
                bench.disk.files.remove(bench.path("state"))
        bench.crash("none" if is_journaled and not loses_state else "all")
        self.log.start()

    def check(self) -> None:
        log = self.log.bench.log()
        self.log.bench.settle()
        self.log.check_offsets()
        assert {each.producer_id for each in log.transactions.open_transactions()} == set(self.open)
        first_open = min((written[0][0] for written in self.open.values()), default=log.end_offset)
        assert stable_offset(log) == first_open
        expected = sorted(entry for entry in self.committed if entry[0] < first_open)
        table = {key: value for _, key, value in expected}
        batches = self.log.bench.read_all()
        for pieces_of in (1, 3, 1000):
            records = committed_records(log, batches, pieces_of)
            found = [(record.offset, record.key, record.value) for record in records]
            assert set(found) <= set(expected), "an aborted record, or one that is not decided"
            assert {key: value for _, key, value in found} == table


@given(st.lists(steps, max_size=40), st.sampled_from(["disk", "cache"]))
@settings(max_examples=80, deadline=None)
def test_readers_of_committed_records_find_the_last_values(told: list[Step], durability: str) -> None:
    log = CompactedLog(durability, delete_retention_ms="1000")
    Story(log).play([*told, Compact(0), Compact(3000), Restart(True), Compact(3000), Restart(False)])
