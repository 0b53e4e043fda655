"""Compaction together with everything that may happen to a log: appends, flushes, retention, truncation, deleted
records, readers, failing syncs, crashes at any time.

A failure names its seed; `pytest -k "seed-17"` runs it again.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from ottla.broker.storage.batches import Slice
from ottla.broker.storage.compaction.compactor import Candidate
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.retention import apply_retention
from ottla.broker.storage.truncation import Truncation
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.record import Record, decode_batch
from ottla.sim.disk import Keep
from tests.support.compacted_logs import CompactedLog, Producer
from tests.support.sim_logs import split

SEEDS = int(os.environ.get("OTTLA_SIM_SEEDS", "100"))
KEEPS: list[Keep] = ["some", "all", "none"]


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        durability = "cache" if seed % 3 == 2 else "disk"
        policy = "compact,delete" if seed % 4 == 3 else "compact"
        self.log = CompactedLog(
            durability, seed, cleanup_policy=policy, retention_ms="20000", delete_retention_ms="300"
        )
        self.watermark = 0
        """Records below are never truncated and may be compacted."""
        self.sequence = 0
        self.reads: list[tuple[int, ColdRead]] = []
        self.compactions = 0

    def step(self) -> None:
        action = self.random.random()
        log = self.log.bench.log()
        if action < 0.50:
            self.append()
        elif action < 0.72:
            self.run_some(self.random.randint(1, 8))
        elif action < 0.78:
            self.log.bench.settle(self.random.choice([1.0, 25.0, 400.0]))
        elif action < 0.85:
            self.log.bench.flusher.run(logs=[log], everything=self.random.random() < 0.5)
        elif action < 0.92:
            self.compact()
        elif action < 0.94:
            log.advance_start(self.random.randint(log.start_offset, self.watermark), lambda _: None)
            apply_retention(log, self.log.bench.flusher, self.log.bench.clock.now_ms(), self.watermark)
        elif action < 0.96:
            self.read()
        elif action < 0.995 and not log.truncating:
            self.truncate()
        else:
            self.log.bench.disk.faults.fail_sync(path=".compacted")
        if self.random.random() < 0.3:
            self.watermark = max(self.watermark, self.random.randint(self.watermark, log.acknowledged_end))

    def append(self) -> None:
        chance = self.random
        log = self.log.bench.log()
        if log.truncating:
            return
        count = chance.randint(1, 5)
        rows = [
            (
                b"key %d" % chance.randrange(12),
                None if chance.random() < 0.2 else chance.randbytes(chance.randint(0, 80)),
            )
            for _ in range(count)
        ]
        compression = chance.choice([0, 0, 0, 3, 4])
        self.log.append(rows, producer=Producer(7, 0, self.sequence), compression=compression)
        self.sequence += count

    def run_some(self, count: int) -> None:
        for _ in range(count):
            if not self.log.bench.clock.run_one():
                break

    def compact(self) -> None:
        self.compactions += 1
        self.log.compactor.look(lambda: [Candidate(self.log.bench.log(), self.watermark)])

    def truncate(self) -> None:
        log = self.log.bench.log()
        if log.end_offset <= max(self.watermark, log.start_offset):
            return
        offset = self.random.randint(max(self.watermark, log.start_offset), log.end_offset - 1)
        done: list[OSError | None] = []
        Truncation(log, self.log.bench.flusher, offset, done.append).begin()
        self.log.bench.settle(50)
        assert done == [None]
        self.forget_above(log.end_offset)

    def forget_above(self, end_offset: int) -> None:
        self.log.appended = [record for record in self.log.appended if record.offset < end_offset]
        self.watermark = min(self.watermark, end_offset)
        entry = self.log.bench.log().producers.get(7)
        self.sequence = entry.batches[-1].last_sequence + 1 if entry is not None and entry.batches else 0

    def read(self) -> None:
        """Starts a read; some reads end much later."""
        log = self.log.bench.log()
        if log.start_offset < log.acknowledged_end:
            offset = self.random.randint(log.start_offset, log.acknowledged_end - 1)
            part = log.read(offset, 300, log.acknowledged_end, keeps_empty=self.random.random() < 0.5)
            if isinstance(part, ColdRead):
                self.reads.append((offset, part))
        if self.reads and self.random.random() < 0.5:
            self.end_read()

    def end_read(self) -> None:
        offset, read = self.reads.pop(0)
        part = read.run()
        read.ended()
        assert isinstance(part, Slice), part
        by_offset = {record.offset: record for record in self.log.appended}
        for batch in split(part):
            assert read_header(batch).next_offset > offset
            for record in decode_batch(batch):
                assert by_offset.get(record.offset, record) == record

    def crash(self) -> None:
        self.reads.clear()
        log = self.log.bench.log()
        keep = self.random.choice(KEEPS)
        acknowledged = log.acknowledged_end if log.is_journaled or keep == "all" else 0
        self.log.bench.settle(0)
        self.log.bench.crash(keep, seed=self.random.randrange(1 << 30))
        self.log.start()
        assert self.log.bench.log().end_offset >= acknowledged
        self.forget_above(self.log.bench.log().end_offset)
        self.watermark = min(self.watermark, self.log.bench.log().acknowledged_end)

    def check(self) -> None:
        log = self.log.bench.log()
        assert log.damages == []
        assert log.failed is None
        found = self.log.records()
        by_offset = {record.offset: record for record in self.log.appended}
        for record in found:
            assert record == by_offset[record.offset]
        self.log.check_offsets()
        start = log.start_offset
        last: dict[bytes | None, Record] = {record.key: record for record in self.log.appended}
        wanted = [record for record in last.values() if record.offset >= start]
        self.log.check_last_values(wanted, [record for record in found if record.offset >= start])


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in range(SEEDS)])
def test_whatever_happens_the_last_value_of_each_key_stays(seed: int) -> None:
    world = World(seed)
    for _ in range(3):
        for _ in range(world.random.randint(60, 200)):
            world.step()
        if world.random.random() < 0.7:
            world.crash()
        else:
            world.log.bench.settle(50)
        world.check()
