"""A log that is never written to a disk."""

from __future__ import annotations

import pytest

from ottla.broker.storage.batches import Slice
from ottla.broker.storage.log_resources import LogResources, MemoryBudget
from ottla.broker.storage.memory_log import MemoryLog
from ottla.broker.storage.tail_cache import TailCache
from ottla.machines.producers import Duplicate
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.topic_config import TopicConfig
from ottla.protocol.records.batch import read_header
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from tests.support.sim_logs import batch_of, config_of, key_of, split


class Memory:
    def __init__(self, *, budget_bytes: int = 100_000, start_offset: int = 0, **settings: str) -> None:
        self.clock = SimClock()
        self.disk = SimDisk(self.clock)
        self.shared = LogResources(self.disk, self.clock, TailCache(1000), MemoryBudget(budget_bytes))
        self.log = self.another(config_of(durability="memory", **settings), start_offset=start_offset)

    def another(self, config: TopicConfig, *, number: int = 0, start_offset: int = 0) -> MemoryLog:
        log = MemoryLog(self.shared, key_of(number), config, start_offset)
        log.reserved_end = start_offset + 1_000_000
        return log

    def append(
        self, *, records: int = 1, timestamp_ms: int | None = None, producer: tuple[int, int, int] = (-1, -1, -1)
    ) -> bytes | Refused:
        timestamp_ms = self.clock.now_ms() if timestamp_ms is None else timestamp_ms
        batch = batch_of(
            [b"value" * 10] * records,
            timestamps_ms=[timestamp_ms],
            base_offset=self.log.end_offset,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
        refused = self.log.refusal(len(batch))
        if refused is not None:
            return refused
        self.log.append(read_header(batch), memoryview(batch))
        return batch

    def read_all(self) -> list[bytes]:
        part = self.log.read(self.log.start_offset, 1 << 20, self.log.acknowledged_end)
        assert isinstance(part, Slice)
        return split(part)


def test_a_batch_is_acknowledged_and_readable_at_once() -> None:
    memory = Memory()
    told: list[int] = []

    class Events:
        high_watermark = 0

        def on_acknowledged(self) -> None:
            told.append(memory.log.acknowledged_end)

        def on_log_failed(self, error: OSError) -> None: ...

    memory.log.events = Events()
    batches = [memory.append(records=2) for _ in range(3)]
    assert told == [2, 4, 6]
    assert memory.read_all() == batches
    assert memory.disk.used_bytes == 0


def test_it_begins_above_what_was_reserved() -> None:
    memory = Memory(start_offset=5_000_000)
    batch = memory.append()
    assert isinstance(batch, bytes)
    assert read_header(batch).base_offset == 5_000_000
    assert memory.log.start_offset == 5_000_000


def test_the_bytes_of_all_memory_logs_are_bounded_together() -> None:
    memory = Memory(budget_bytes=2000)
    first = memory.log
    memory.log = memory.another(first.config, number=1)
    while isinstance(memory.append(), bytes):
        pass
    refused = first.refusal(200)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.kafka_storage_error
    assert "ottla.memory.max.bytes" in (refused.message or "")
    assert memory.shared.memory.size_bytes <= 2000
    # Space is freed by retention, by deleting a log, and by a new start offset.
    memory.log.advance_start(memory.log.end_offset, lambda _: None)
    assert memory.shared.memory.size_bytes == 0
    assert first.refusal(200) is None
    memory.append()
    memory.log.close()
    assert memory.shared.memory.size_bytes == 0


def test_retention_drops_batch_by_batch() -> None:
    memory = Memory(retention_ms="60000")
    batches = []
    for _ in range(10):
        batches.append(memory.append())
        memory.clock.advance(10_000)
    memory.log.apply_retention(memory.clock.now_ms())
    assert memory.log.start_offset == 4
    assert memory.read_all() == batches[4:]
    memory.clock.advance(60_000)
    memory.log.apply_retention(memory.clock.now_ms())
    assert (memory.log.start_offset, memory.log.end_offset) == (10, 10)
    assert memory.shared.memory.size_bytes == 0


def test_retention_by_size() -> None:
    memory = Memory(retention_bytes="500")
    for _ in range(10):
        memory.append()
    memory.log.apply_retention(memory.clock.now_ms())
    assert memory.log.size_bytes <= 500
    assert memory.log.start_offset > 0


def test_retention_by_size_does_not_take_a_timestamp_for_the_time() -> None:
    """A client's clock may be years ahead: its record expires nothing."""
    memory = Memory(retention_bytes="500", retention_ms="60000")
    while memory.log.start_offset == 0:
        memory.append()
    kept = memory.read_all()[1:]
    batch = memory.append(timestamp_ms=memory.clock.now_ms() + 1_000_000_000)
    assert memory.read_all() == [*kept, batch]


class Watermark:
    """The owner of a log that is replicated."""

    high_watermark = 0

    def on_acknowledged(self) -> None: ...

    def on_log_failed(self, error: OSError) -> None: ...


@pytest.mark.parametrize(("size", "time"), [("500", "-1"), ("-1", "60000")], ids=["size", "time"])
def test_retention_stays_below_the_high_watermark(size: str, time: str) -> None:
    """Followers have not got the records above it (safety: after-failover)."""
    memory = Memory(retention_bytes=size, retention_ms=time)
    memory.log.events = owner = Watermark()
    batches = [memory.append(records=2) for _ in range(10)]
    memory.clock.advance(61_000)
    memory.log.apply_retention(memory.clock.now_ms())
    assert memory.read_all() == batches
    owner.high_watermark = 5
    memory.log.apply_retention(memory.clock.now_ms())
    assert memory.log.start_offset == 4
    assert memory.read_all() == batches[2:]
    owner.high_watermark = 20
    memory.log.apply_retention(memory.clock.now_ms())
    assert memory.log.size_bytes <= 500


def test_records_without_a_timestamp_live_as_long_as_others() -> None:
    memory = Memory(retention_ms="60000")
    batch = memory.append(timestamp_ms=-1)
    memory.log.apply_retention(memory.clock.now_ms())
    assert memory.read_all() == [batch]
    memory.clock.advance(61_000)
    memory.log.apply_retention(memory.clock.now_ms())
    assert memory.read_all() == []


def test_producers_outlive_their_batches() -> None:
    memory = Memory(retention_ms="1000")
    memory.append(producer=(7, 0, 0))
    memory.clock.advance(2000)
    memory.log.apply_retention(memory.clock.now_ms())
    assert memory.read_all() == []
    assert isinstance(memory.log.producers.judge(7, 0, 0, 0), Duplicate)


def test_a_new_start_inside_a_batch_keeps_the_batch() -> None:
    memory = Memory()
    batch = memory.append(records=5)
    memory.log.advance_start(3, lambda _: None)
    assert memory.log.start_offset == 3
    assert memory.read_all() == [batch]


@pytest.mark.parametrize(("wanted_ms", "found"), [(0, (100, 0)), (100, (100, 0)), (101, (300, 2)), (301, None)])
def test_look_up_by_time(wanted_ms: int, found: tuple[int, int] | None) -> None:
    memory = Memory()
    for timestamps in ([100, 50], [300, 200]):
        batch = batch_of([b"a", b"b"], timestamps_ms=timestamps, base_offset=memory.log.end_offset)
        memory.log.append(read_header(batch), memoryview(batch))
    assert memory.log.offset_for_time(wanted_ms) == found
    assert memory.log.max_timestamp() == (300, 2)


def test_look_up_by_time_begins_at_the_start() -> None:
    memory = Memory()
    batch = batch_of([b"a", b"b", b"c"], timestamps_ms=[100, 200, 300])
    memory.log.append(read_header(batch), memoryview(batch))
    memory.log.advance_start(1, lambda _: None)
    found = memory.log.offset_for_time(0)
    assert found is not None
    assert found.offset >= 1


# -- reserved offsets (safety: memory-loss) --------------------------------------------------------------------------


def test_no_offset_is_given_out_that_is_not_reserved() -> None:
    """After a restart the log continues at the reserved end: an offset above it would be assigned twice."""
    memory = Memory()
    memory.log.reserved_end = 10
    batches = [memory.append(records=4), memory.append(records=4)]
    assert all(isinstance(batch, bytes) for batch in batches)
    refused = memory.log.refusal(200, 4)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.kafka_storage_error
    assert memory.log.refusal(200, 2) is None
    memory.log.reserved_end = 20
    assert memory.log.refusal(200, 4) is None
