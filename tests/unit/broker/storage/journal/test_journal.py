"""The journal on a simulated disk: group commit, order, failure."""

from __future__ import annotations

import errno
from collections.abc import Callable
from uuid import UUID

import pytest

from ottla.broker.storage.journal import (
    Journal,
    JournalEntry,
    JournalLimits,
    Mutation,
    RecoveredJournal,
    pack_key,
    recover,
)
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId
from ottla.protocol.records.batch import HEADER_BYTES, BatchHeader, checksum, read_header, write_header
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from ottla.sim.disk_queue import SimDiskQueue

DIRECTORY = "/data/journal"
JOURNAL_ID = bytes(range(16))
SMALL = JournalLimits(ring_bytes_max=256 << 10, file_bytes_max=32 << 10, group_bytes_max=16 << 10)


def make_batch(base_offset: int, records: bytes = b"records", record_count: int = 1, epoch: int = 0) -> memoryview:
    """Returns a batch as the log passes it on: stamped, with a matching checksum."""
    batch = bytearray(HEADER_BYTES) + records
    fields = (base_offset, len(batch) - 12, epoch, 2, 0, 0, record_count - 1, 0, 0, -1, -1, -1, record_count)
    header = BatchHeader._make(fields)
    write_header(batch, header)
    write_header(batch, header._replace(crc=checksum(batch)))
    return memoryview(batch)


class Log:
    """A minimal log that records its notifications from the journal."""

    def __init__(self, partition: int, events: list[object] | None = None) -> None:
        self.key = LogKey(TopicId(UUID(int=7)), PartitionIndex(partition), generation=1)
        self.journal_key = pack_key(self.key)
        self.end = 0
        self.journaled: list[int] = []
        self.failures: list[OSError] = []
        self.events = [] if events is None else events

    def on_journaled(self, end_offset: int) -> None:
        self.journaled.append(end_offset)
        self.events.append((self.key.partition, end_offset))

    def on_journal_failed(self, error: OSError) -> None:
        self.failures.append(error)


class World:
    """A clock, a disk and a journal that can be crashed."""

    def __init__(self, limits: JournalLimits = SMALL, disk: SimDisk | None = None, released: int = 0) -> None:
        self.disk = disk or SimDisk(SimClock())
        assert isinstance(self.disk.clock, SimClock)
        self.clock = self.disk.clock
        self.pressure = 0
        self.failures: list[OSError] = []
        self.journal = Journal.open(
            self.disk,
            self.clock,
            DIRECTORY,
            JOURNAL_ID,
            released=released,
            limits=limits,
            on_pressure=self._on_pressure,
            on_failed=self.failures.append,
        )

    def _on_pressure(self) -> None:
        self.pressure += 1

    def append(self, log: Log, size: int = 100, record_count: int = 1) -> memoryview:
        batch = make_batch(log.end, bytes([log.end % 251]) * size, record_count)
        self.journal.append_batch(log, read_header(batch), batch)
        log.end += record_count
        return batch

    def run(self) -> None:
        self.clock.run_until_idle()

    def recover(self, released: int = 0) -> RecoveredJournal:
        return recover(self.disk.files, DIRECTORY, JOURNAL_ID, released)

    def release_everything(self) -> None:
        oldest = self.journal.oldest(everything=True)
        if oldest is not None:
            self.journal.release(oldest[0])


def offsets(entries: list[JournalEntry], log: Log) -> list[int]:
    return [entry.offset for entry in entries if entry.key == log.key]


def test_an_append_is_heard_of_once_it_is_durable() -> None:
    world, log = World(), Log(0)
    batch = world.append(log, record_count=3)
    assert log.journaled == []
    world.run()
    assert log.journaled == [3]
    assert world.journal.idle
    [entry] = world.recover().entries()
    assert (entry.sequence, entry.kind, entry.key, entry.offset) == (1, Mutation.APPEND, log.key, 0)
    assert entry.header == read_header(batch)
    assert entry.batch == batch


def test_what_arrives_during_a_write_shares_the_next_one() -> None:
    world = World()
    world.disk.stall("journal")
    events: list[object] = []
    logs = [Log(partition, events) for partition in range(5)]
    world.append(logs[0])
    world.run()
    assert world.disk.journal_queue.pending() == 1
    for log in logs * 4:
        world.append(log)
    world.run()
    assert world.disk.journal_queue.pending() == 1, "one write in flight"
    world.disk.release("journal")
    world.run()
    assert world.journal.stats.syncs == 2
    assert world.journal.stats.entries == 21
    assert world.journal.stats.groups_by_entries[1] == 1
    assert world.journal.stats.groups_by_entries[5] == 1
    assert events == [(0, 1), (0, 5), (1, 4), (2, 4), (3, 4), (4, 4)], "each log once a group"


def test_appends_of_one_turn_share_a_write() -> None:
    world, log = World(), Log(0)
    for _ in range(10):
        world.append(log)
    world.run()
    assert world.journal.stats.syncs == 1
    assert log.journaled == [10]


def test_the_next_write_starts_before_the_logs_are_told() -> None:
    world = World()
    pending: list[int] = []

    class Watching(Log):
        def on_journaled(self, end_offset: int) -> None:
            pending.append(world.disk.journal_queue.pending())

    log = Watching(0)
    world.disk.stall("journal")
    world.append(log)
    world.run()
    world.append(log)
    world.disk.release("journal", count=1)
    world.disk.release("journal", count=1)
    assert pending == [1, 0]


def test_a_group_is_not_larger_than_its_limit() -> None:
    world, log = World(), Log(0)
    for _ in range(40):
        world.append(log, size=1000)
    world.run()
    assert world.journal.stats.syncs > 2
    assert log.journaled[-1] == 40
    assert offsets(list(world.recover().entries()), log) == list(range(40))
    assert max(block.header.block_bytes for block in world.recover().blocks) <= SMALL.group_bytes_max


def test_many_small_entries_make_one_group() -> None:
    world, log = World(JournalLimits()), Log(0)
    for _ in range(1000):
        world.append(log, size=1)
    world.run()
    assert world.journal.stats.syncs == 1
    assert offsets(list(world.recover().entries()), log) == list(range(1000))


def test_mutations_are_in_order_with_appends() -> None:
    world, first, second = World(), Log(1), Log(2)
    heard: list[object] = []
    for _ in range(3):
        world.append(first)
    world.journal.append_mutation(first, Mutation.TRUNCATE, 1, heard.append)
    world.journal.append_mutation(second, Mutation.LOG_START, 7, heard.append)
    first.end = 1
    world.append(first)
    world.journal.append_mutation(second, Mutation.DELETE, 0, heard.append)
    assert heard == []
    world.run()
    assert heard == [None, None, None]
    assert first.journaled == [2]
    assert second.journaled == []
    found = [(entry.kind, entry.key.partition, entry.offset) for entry in world.recover().entries()]
    assert found == [
        (Mutation.APPEND, 1, 0),
        (Mutation.APPEND, 1, 1),
        (Mutation.APPEND, 1, 2),
        (Mutation.TRUNCATE, 1, 1),
        (Mutation.LOG_START, 2, 7),
        (Mutation.APPEND, 1, 1),
        (Mutation.DELETE, 2, 0),
    ]
    oldest = world.journal.oldest(everything=True)
    assert oldest == (1, {first: 2, second: -1})


def test_a_batch_whose_length_lies_is_refused() -> None:
    world, log = World(), Log(0)
    batch = make_batch(0)
    with pytest.raises(ValueError, match="bytes"):
        world.journal.append_batch(log, read_header(batch), batch[:-1])
    with pytest.raises(ValueError, match="append_batch"):
        world.journal.append_mutation(log, Mutation.APPEND, 0, lambda _: None)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_is_final(error: int) -> None:
    world = World()
    heard: list[OSError | None] = []
    written, waiting, later = Log(0), Log(1), Log(2)
    world.append(written)
    world.run()
    world.disk.faults.fail_write(path="journal", error=error)
    world.append(written)
    world.disk.stall("journal")
    world.run()
    world.append(written)
    world.append(waiting)
    world.journal.append_mutation(waiting, Mutation.TRUNCATE, 0, heard.append)
    world.disk.release("journal")
    world.run()
    assert world.journal.failed is not None
    assert world.journal.failed.errno == error
    assert world.failures == [world.journal.failed]
    assert written.journaled == [1]
    assert written.failures == [world.journal.failed], "once, though it waited in two groups"
    assert waiting.failures == [world.journal.failed]
    assert heard == [world.journal.failed]
    world.append(later)
    assert later.failures == [], "never inside the append"
    world.run()
    assert later.failures == [world.journal.failed]
    assert later.journaled == []
    assert world.journal.stats.syncs == 1
    assert world.journal.has_room, "nobody waits for a journal that is dead"


# -- pipelined writes --------------------------------------------------------------------------------------------

CHAINED = JournalLimits(ring_bytes_max=256 << 10, file_bytes_max=32 << 10, group_bytes_max=16 << 10, early_bytes=2000)


def given_to(disk: SimDisk) -> int:
    """Returns the number of blocks that the disk has not written yet."""
    assert isinstance(disk.journal_queue, SimDiskQueue)
    return len(disk.journal_queue.pending_requests())


def in_flight_and_behind(world: World, log: Log, behind: Log | None = None) -> None:
    """One block is being written, and one waits for the disk."""
    world.disk.stall("journal")
    world.append(log)
    world.run()
    world.append(behind or log, size=3000)
    world.run()
    assert given_to(world.disk) == 2


def test_enough_for_a_block_goes_to_the_disk_behind_the_one_that_it_writes() -> None:
    world, log = World(CHAINED), Log(0)
    in_flight_and_behind(world, log)
    world.append(log, size=3000)
    world.run()
    assert given_to(world.disk) == 2, "no more than that"
    assert log.journaled == []
    world.disk.release("journal", count=1)
    assert (log.journaled, given_to(world.disk)) == ([1], 2)
    world.disk.release("journal")
    world.run()
    assert (log.journaled, world.journal.stats.syncs, world.journal.idle) == ([1, 2, 3], 3, True)
    assert [entry.sequence for entry in world.recover().entries()] == [1, 2, 3]


def test_a_little_waits_for_more_while_the_disk_writes() -> None:
    world, log = World(CHAINED), Log(0)
    world.disk.stall("journal")
    for _ in range(3):
        world.append(log)
        world.run()
    assert given_to(world.disk) == 1
    world.disk.release("journal")
    world.run()
    assert log.journaled == [1, 3]


def test_nothing_is_written_behind_a_write_that_failed() -> None:
    """Otherwise a block could name a missing one as durable, and acknowledged records would seem lost."""
    world, log, behind, other = World(CHAINED), Log(0), Log(1), Log(2)
    world.append(log)
    world.run()
    world.disk.faults.fail_write(path="journal", error=errno.EIO, count=1)
    in_flight_and_behind(world, log, behind)
    world.append(other)
    world.disk.release("journal")
    world.run()
    assert world.journal.failed is not None
    assert log.journaled == [1]
    assert log.failures == behind.failures == other.failures == [world.journal.failed]
    recovered = world.recover()
    assert [entry.sequence for entry in recovered.entries()] == [1]
    assert not recovered.damage
    world.journal.close()


def test_a_crash_with_a_block_behind_a_block() -> None:
    """Whichever of them reached the disk, the second is present only with the first, and nothing looks damaged."""
    seen = set()
    for seed in range(60):
        world, log = World(CHAINED), Log(0)
        in_flight_and_behind(world, log)
        survivor = world.disk.crash(seed)
        recovered = recover(survivor.files, DIRECTORY, JOURNAL_ID, 0)
        assert not recovered.damage
        seen.add(tuple(entry.sequence for entry in recovered.entries()))
    assert seen == {(), (1,), (1, 2)}


def test_a_file_is_left_when_all_of_it_is_durable() -> None:
    """The sync position for reusing a file is known only for durable blocks."""
    limits = JournalLimits(ring_bytes_max=64 << 10, file_bytes_max=16 << 10, group_bytes_max=8 << 10, early_bytes=2000)
    world, log = World(limits), Log(0)
    ends_by_sequence: dict[int, int] = {}
    for _ in range(40):
        world.disk.stall("journal")
        for _ in range(5):
            world.append(log, size=3000)
            world.run()
        while given_to(world.disk):
            world.disk.release("journal", count=1)
            ends_by_sequence[world.journal.durable_sequence] = log.journaled[-1]
            oldest = world.journal.oldest()
            if oldest is not None:
                sequence, ends = oldest
                assert ends[log] == ends_by_sequence[sequence], "all of the file, and it is durable"
                world.journal.release(sequence)
        world.disk.release("journal")
        world.run()
        ends_by_sequence[world.journal.durable_sequence] = log.journaled[-1]
    assert log.journaled[-1] == log.end == 200


def test_a_close_finishes_both() -> None:
    world, log = World(CHAINED), Log(0)
    in_flight_and_behind(world, log)
    world.journal.close()
    world.disk.release("journal")
    world.run()
    assert log.journaled == [1, 2]


def test_a_log_that_raises_does_not_keep_others_from_hearing() -> None:
    class Broken(Log):
        def on_journaled(self, end_offset: int) -> None:
            raise RuntimeError("a bug")

    world, broken, log = World(), Broken(0), Log(1)
    for _ in range(2):
        world.append(broken)
        world.append(log)
        world.run()
    assert log.journaled == [1, 2]


def test_close_refuses_appends_and_finishes_what_is_in_flight() -> None:
    world, log = World(), Log(0)
    world.disk.stall("journal")
    world.append(log)
    world.run()
    world.journal.close()
    with pytest.raises(RuntimeError, match="closed"):
        world.append(log)
    with pytest.raises(RuntimeError, match="closed"):
        world.journal.append_mutation(log, Mutation.TRUNCATE, 0, lambda _: None)
    world.disk.release("journal")
    world.run()
    assert log.journaled == [1]
    world.journal.close()


def test_an_append_from_a_callback_goes_to_the_next_group() -> None:
    world = World()

    class Chain(Log):
        def on_journaled(self, end_offset: int) -> None:
            super().on_journaled(end_offset)
            if end_offset < 5:
                world.append(self)

    log = Chain(0)
    world.append(log)
    world.run()
    assert log.journaled == [1, 2, 3, 4, 5]
    assert world.journal.stats.syncs == 5


def test_a_new_journal_needs_an_id_of_16_bytes() -> None:
    clock = SimClock()
    with pytest.raises(ValueError, match="16"):
        Journal.open(SimDisk(clock), clock, DIRECTORY, b"short", released=0)


def count_calls(into: list[int]) -> Callable[[], None]:
    return lambda: into.append(1)
