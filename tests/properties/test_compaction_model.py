"""Compaction compared with a list of all records: the last record of each key stays, all offsets stay covered, nothing
is invented.

Every history runs with the compiled key map and with the plain one, and both must leave the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.storage.compaction import compaction
from ottla.broker.storage.compaction.compaction import CompactionLimits
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.key_map import AnyKeyMap, KeyMap, new_key_map
from ottla.protocol.records.record import Record
from tests.support.compacted_logs import NO_LIMITS, NOBODY, CompactedLog, Producer

KEYS = [b"", b"a", b"b", b"key", b"a longer key of more than sixteen bytes", b"\xff\x00"]
FEW_KEYS = CompactionLimits(map_bytes_max=24 * 16, cpu_percent=100, io_bytes_per_second_max=1e12)
"""Twelve keys: several passes are needed."""


@dataclass(frozen=True)
class Append:
    rows: list[tuple[bytes, bytes | None]]
    compression: int = 0
    producer: int = -1
    new_epoch: bool = False
    append_time: bool = False


@dataclass(frozen=True)
class Compact:
    after_ms: int


@dataclass(frozen=True)
class Restart:
    pass


rows = st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=200)))
appends = st.builds(
    Append,
    rows=st.lists(rows, min_size=1, max_size=8),
    compression=st.integers(0, 4),
    producer=st.integers(-1, 2),
    new_epoch=st.booleans(),
    append_time=st.booleans(),
)
steps = st.one_of(appends, appends, appends, st.builds(Compact, st.sampled_from([0, 500, 3000])), st.just(Restart()))


@dataclass
class Story:
    log: CompactedLog
    sequences: dict[int, int] = field(default_factory=dict)
    epoch: int = 1

    def play(self, told: list[Append | Compact | Restart]) -> None:
        for step in told:
            match step:
                case Append():
                    self._append(step)
                case Compact():
                    self.log.bench.clock.advance(step.after_ms)
                    self.log.roll()
                    self.log.compact()
                    self.log.check()
                    check_exact(self.log)
                case Restart():
                    self.log.bench.settle()
                    # A `cache` log may lose unsynced data in a power cut, so its process is killed instead.
                    self.log.bench.crash("none" if self.log.bench.log().is_journaled else "all")
                    self.log.start()
                    self.log.check()
        self._check_sequences()

    def _append(self, step: Append) -> None:
        self.epoch += step.new_epoch
        producer = NOBODY
        if step.producer >= 0:
            sequence = self.sequences.get(step.producer, 0)
            producer = Producer(step.producer, 0, sequence)
            self.sequences[step.producer] = sequence + len(step.rows)
        self.log.append(
            step.rows,
            compression=step.compression,
            producer=producer,
            leader_epoch=self.epoch,
            append_time=step.append_time,
        )

    def _check_sequences(self) -> None:
        """Compares with a state rebuilt from the log alone, as if the state file were lost."""
        self.log.bench.settle()
        self.log.bench.flush()
        state = self.log.bench.path("state")
        if self.log.bench.disk.files.exists(state):
            self.log.bench.disk.files.remove(state)
        epochs = list(self.log.bench.log().epochs)
        self.log.bench.crash("all")
        self.log.start()
        for producer_id, sequence in self.sequences.items():
            entry = self.log.bench.log().producers.get(producer_id)
            assert entry is not None
            assert entry.batches[-1].last_sequence == sequence - 1
        assert list(self.log.bench.log().epochs) == epochs


def check_exact(log: CompactedLog) -> None:
    """Checks that below the mark each key has exactly its last record."""
    end = log.bench.log().durable.compacted_end
    found = [record for record in log.records() if record.offset < end]
    last: dict[bytes | None, Record] = {record.key: record for record in log.appended if record.offset < end}
    for record in found:
        assert record == last[record.key]
    assert len({record.key for record in found}) == len(found)


def plain_map(keys_max: int, hash_key: bytes) -> AnyKeyMap:
    return KeyMap(keys_max, hash_key)


Maps = Callable[[int, bytes], AnyKeyMap]


def played(
    told: list[Append | Compact | Restart], new_map: Maps, limits: CompactionLimits, durability: str
) -> CompactedLog:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "new_key_map", new_map)
        log = CompactedLog(durability, limits=limits, delete_retention_ms="1000")
        Story(log).play(told)
    return log


@given(st.lists(steps, max_size=25), st.sampled_from([NO_LIMITS, FEW_KEYS]), st.sampled_from(["disk", "cache"]))
@settings(max_examples=60, deadline=None)
def test_the_last_record_of_each_key_stays(
    told: list[Append | Compact | Restart], limits: CompactionLimits, durability: str
) -> None:
    told = [*told, Compact(0)]
    compiled = played(told, new_key_map, limits, durability)
    plain = played(told, plain_map, limits, durability)
    assert compiled.bench.read_all() == plain.bench.read_all()


@given(st.lists(appends, min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_in_the_end_nothing_is_left_of_deleted_keys(told: list[Append]) -> None:
    log = CompactedLog(delete_retention_ms="1000")
    story = Story(log)
    story.play([*told, Compact(0), Compact(2000)])
    log.roll()
    log.compact()
    end = log.bench.log().durable.compacted_end
    assert all(record.value is not None for record in log.records() if record.offset < end - 1)
    covered = [read_header(batch) for batch in log.bench.read_all()]
    assert covered[0].base_offset == 0


@given(st.lists(appends, min_size=1, max_size=15), st.booleans())
@settings(max_examples=30, deadline=None)
def test_compacting_again_changes_nothing(told: list[Append], restarts: bool) -> None:
    log = CompactedLog()
    Story(log).play([*told, Compact(0)])
    log.roll()
    log.compact()
    before = log.table()
    for _ in range(2):
        if restarts:
            log.bench.crash("none")
            log.start()
        log.roll()
        log.compact()
    assert log.table() == before
    log.check()
