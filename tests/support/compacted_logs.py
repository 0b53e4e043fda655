"""A log of keyed records on a simulated disk beside a model of it, for tests of compaction.

The model is the list of all appended records. Whatever compaction does, and wherever it is interrupted, a reader finds
a subsequence of that list with unchanged records, and the last record of each key is present unless it is a tombstone
old enough to be removed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ottla.broker.storage.compaction.compaction import CompactionLimits
from ottla.broker.storage.compaction.compactor import Candidate, Compactor
from ottla.protocol.records.batch import read_header, stamp
from ottla.protocol.records.record import Record, decode_batch, encode_batch
from tests.support.sim_logs import LogBench

HASH_KEY = bytes(range(16))
NO_LIMITS = CompactionLimits(map_bytes_max=1 << 20, cpu_percent=100, io_bytes_per_second_max=math.inf)
COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "segment_bytes": "1024"}


class Producer(NamedTuple):
    id: int = -1
    epoch: int = -1
    sequence: int = -1


NOBODY = Producer()


class CompactedLog:
    def __init__(
        self, durability: str = "disk", seed: int = 1, limits: CompactionLimits = NO_LIMITS, **settings: str
    ) -> None:
        self.bench = LogBench(durability, settings={**COMPACTED, **settings}, seed=seed, tail_bytes=0)
        self.limits = limits
        self.appended: list[Record] = []
        self.compactor = self._new_compactor()

    def _new_compactor(self) -> Compactor:
        return Compactor(self.bench.flusher, self.limits, lambda: HASH_KEY)

    # -- operations ------------------------------------------------------------------------------------------

    def append(
        self,
        rows: Sequence[tuple[bytes | None, bytes | None]],
        *,
        compression: int = 0,
        producer: Producer = NOBODY,
        leader_epoch: int | None = None,
        transactional: bool = False,
        append_time: bool = False,
    ) -> None:
        log, now_ms = self.bench.log(), self.bench.clock.now_ms()
        base = log.end_offset
        headers = (("source", b"test"), ("none", None))
        records = [Record(base + i, now_ms + i, key, value, headers[: i % 3]) for i, (key, value) in enumerate(rows)]
        batch = encode_batch(
            records,
            base_offset=base,
            compression=compression,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            transactional=transactional,
            append_time_ms=now_ms if append_time else None,
        )
        assert log.refusal(len(batch)) is None
        stamp(batch, base, self._next_epoch(leader_epoch))
        log.append(read_header(batch), memoryview(batch))
        self.appended += decode_batch(batch)

    def append_raw(self, batch: bytearray) -> None:
        """Appends a batch of another kind."""
        log = self.bench.log()
        stamp(batch, log.end_offset, self._next_epoch(None))
        log.append(read_header(batch), memoryview(batch))
        self.appended += decode_batch(batch)

    def _next_epoch(self, wanted: int | None) -> int:
        """Leader epochs never decrease."""
        return max(self.bench.epoch if wanted is None else wanted, self.bench.log().epochs.latest)

    def put(self, *keys: str, value: bytes | None = b"x" * 40) -> None:
        """Appends one batch per key."""
        for key in keys:
            self.append([(key.encode(), value)])
        self.bench.settle()

    def begin_compaction(self) -> None:
        log = self.bench.log()
        log.transactions.advance_watermark(log.acknowledged_end)
        stable = log.transactions.last_stable_offset(log.start_offset)
        self.compactor.look(lambda: [Candidate(log, stable)])

    def compact(self, ms: float = 50.0) -> None:
        """Flushes and compacts everything but the active segment before it returns."""
        self.bench.flush()
        self.begin_compaction()
        self.bench.settle(ms)
        assert not self.compactor.is_running, "the compaction does not end"

    def roll(self) -> None:
        if self.bench.log().active.appended_end:
            self.bench.log().roll()
            self.append([(b"in the active segment", b"1")])
        self.bench.settle()

    def start(self) -> None:
        self.bench.start()
        self.compactor = self._new_compactor()

    # -- observations ----------------------------------------------------------------------------------------

    def records(self) -> list[Record]:
        return [record for batch in self.bench.read_all() for record in decode_batch(batch)]

    def table(self) -> dict[bytes, bytes]:
        """Returns the last value of each key, as a reader of the whole log computes it."""
        found: dict[bytes, bytes | None] = {}
        for record in self.records():
            assert record.key is not None
            found[record.key] = record.value
        return {key: value for key, value in found.items() if value is not None}

    # -- invariants ------------------------------------------------------------------------------------------

    def check(self) -> None:
        log = self.bench.log()
        assert log.damages == []
        assert log.failed is None
        self.check_offsets()
        found = self.records()
        by_offset = {record.offset: record for record in self.appended if record.offset < log.end_offset}
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        for record in found:
            assert record == by_offset[record.offset]
        self.check_last_values(list(by_offset.values()), found)

    def check_offsets(self) -> None:
        """Checks that the batches cover all offsets without a gap."""
        expected = self.bench.log().start_offset
        for batch in self.bench.read_all():
            header = read_header(batch)
            assert header.base_offset <= expected < header.next_offset
            expected = header.next_offset
        assert expected == self.bench.log().end_offset

    @staticmethod
    def check_last_values(appended: list[Record], found: list[Record]) -> None:
        last = {record.key: record for record in appended if record.key is not None}
        seen = {record.key: record for record in found}
        for key, record in last.items():
            if record.value is not None:
                assert seen.get(key) == record, f"the last value of {key!r} is gone"
            else:
                assert seen.get(key) in (record, None), f"{key!r} is back"
