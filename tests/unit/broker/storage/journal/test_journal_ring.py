"""The journal's ring of files: growth, wrap, release, back-pressure, oversized blocks, a full disk."""

from __future__ import annotations

import errno

import pytest

from ottla.broker.storage.journal import JournalLimits, Mutation, recover
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from tests.unit.broker.storage.journal.test_journal import DIRECTORY, JOURNAL_ID, SMALL, Log, World, offsets

TWO_FILES = JournalLimits(ring_bytes_max=32 << 10, file_bytes_max=16 << 10, group_bytes_max=16 << 10)


def fill(world: World, log: Log, size: int = 3000) -> None:
    """Appends until the ring is full and a group waits for space."""
    for _ in range(1000):
        if not world.journal.has_room:
            return
        world.append(log, size)
        world.run()
    raise AssertionError("the ring never fills")


def test_a_new_ring_is_one_small_file_that_is_there_after_a_power_cut() -> None:
    world = World(JournalLimits())
    assert world.disk.files.list_dir(DIRECTORY) == ["journal-0001"]
    assert world.journal.total_bytes == 1 << 20
    after = world.disk.crash(keep="none")
    assert after.durable_bytes(f"{DIRECTORY}/journal-0001") == bytes(1 << 20)


def test_the_ring_grows_before_it_is_full() -> None:
    world, log = World(), Log(0)
    while world.journal.used_bytes < 20 << 10:
        world.append(log, 3000)
        world.run()
    assert world.disk.files.list_dir(DIRECTORY) == ["journal-0001", "journal-0002"]
    assert world.journal.has_room
    assert world.journal.oldest() is None, "no file is full yet"


def test_files_double_up_to_their_limit() -> None:
    world, log = World(JournalLimits(ring_bytes_max=16 << 20, file_bytes_max=4 << 20)), Log(0)
    while world.journal.total_bytes < 15 << 20:
        world.append(log, 300_000)
        world.run()
    sizes = [world.disk.files.open(f"{DIRECTORY}/{name}").size() for name in world.disk.files.list_dir(DIRECTORY)]
    assert sizes == [1 << 20, 2 << 20, 4 << 20, 4 << 20, 4 << 20]
    assert offsets(list(world.recover().entries()), log) == list(range(log.end))


def test_a_full_ring_holds_back_and_goes_on_after_a_release() -> None:
    world, log = World(TWO_FILES), Log(0)
    fill(world, log)
    world.append(log, 3000)
    world.append(log, 3000)
    world.run()
    acknowledged = log.journaled[-1]
    assert acknowledged < log.end
    assert not world.journal.idle
    assert world.pressure
    assert world.journal.under_pressure
    oldest = world.journal.oldest()
    assert oldest is not None
    sequence, ends = oldest
    assert ends == {log: 8}, "one sync of the log releases both full files"
    world.journal.release(sequence)
    world.run()
    assert log.journaled[-1] == log.end
    assert world.journal.has_room
    assert world.journal.total_bytes <= TWO_FILES.ring_bytes_max
    found = offsets(list(world.recover(sequence).entries()), log)
    assert found == list(range(8, log.end))


def test_files_with_few_other_logs_are_released_together() -> None:
    """A round of syncs covers later files too if at most as many logs are added as the oldest file has."""
    limits = JournalLimits(ring_bytes_max=128 << 10, file_bytes_max=16 << 10, group_bytes_max=16 << 10)
    world = World(limits)
    first, second, third = Log(0), Log(1), Log(2)
    for log in (first, second, third, third):
        for _ in range(4):
            world.append(log, 3000)
            world.run()
    assert world.journal.oldest() == (8, {first: 4, second: 4}), "a third log would be more than twice the first file's"
    world.journal.release(8)
    assert world.journal.oldest() == (12, {third: 4})


def test_a_group_can_be_released_once_all_its_logs_know_of_it() -> None:
    """A flush covers what each log knows to be durable. If the first log of a group asked for a release before the
    second was notified, the second log's records would leave the journal without being in a segment."""
    world = World()
    seen: list[object] = []

    class Asking(Log):
        def on_journaled(self, end_offset: int) -> None:
            super().on_journaled(end_offset)
            seen.append(world.journal.oldest(everything=True))

    first, second = Asking(0), Log(1)
    world.append(first)
    world.append(second)
    world.run()
    assert seen == [None]
    assert world.journal.oldest(everything=True) == (1, {first: 1, second: 1})


def test_the_ring_wraps_many_times() -> None:
    world, log = World(TWO_FILES), Log(0)
    for _ in range(200):
        world.append(log, 3000)
        world.run()
        while (oldest := world.journal.oldest()) is not None:
            world.journal.release(oldest[0])
    assert log.journaled[-1] == 200
    assert world.journal.total_bytes <= TWO_FILES.ring_bytes_max
    recovered = world.recover(world.journal.released_sequence)
    assert recovered.damage == ()
    assert recovered.last_sequence == 200
    assert offsets(list(recovered.entries()), log) == list(range(world.journal.released_sequence, 200))


def test_a_ring_of_one_file_can_be_released_too() -> None:
    limits = JournalLimits(ring_bytes_max=16 << 10, file_bytes_max=16 << 10, group_bytes_max=16 << 10)
    world, log = World(limits), Log(0)
    for _ in range(20):
        fill(world, log)
        world.append(log, 3000)
        world.run()
        oldest = world.journal.oldest()
        assert oldest is not None
        world.journal.release(oldest[0])
        world.run()
    assert log.journaled[-1] == log.end
    assert world.journal.total_bytes == 16 << 10


def test_releasing_everything_uses_the_current_file_again() -> None:
    world, log = World(), Log(0)
    for _ in range(100):
        world.append(log, 3000)
        world.run()
        world.release_everything()
    assert world.disk.files.list_dir(DIRECTORY) == ["journal-0001"]
    assert world.journal.used_bytes == 0
    assert world.journal.oldest(everything=True) is None


def test_a_file_is_used_again_only_when_all_of_it_is_released() -> None:
    world, log = World(TWO_FILES), Log(0)
    fill(world, log)
    used_bytes = world.journal.used_bytes
    for sequence in (1, 2, 3):
        world.journal.release(sequence)
        assert world.journal.used_bytes == used_bytes
    world.journal.release(4)
    assert world.journal.used_bytes == used_bytes - (16 << 10)
    world.journal.release(world.journal.durable_sequence - 1)
    assert world.journal.used_bytes == used_bytes - (16 << 10), "nor the current one"


def test_only_what_is_durable_can_be_released() -> None:
    world, log = World(), Log(0)
    world.append(log)
    with pytest.raises(ValueError, match="not durable"):
        world.journal.release(1)
    world.run()
    world.journal.release(1)


def test_a_release_spares_the_write_in_flight() -> None:
    world, log = World(), Log(0)
    world.append(log)
    world.run()
    world.disk.stall("journal")
    world.append(log)
    world.run()
    assert world.journal.oldest(everything=True) == (1, {log: 1})
    world.journal.release(1)
    world.disk.release("journal")
    world.run()
    assert world.journal.oldest(everything=True) == (2, {log: 2})
    assert offsets(list(world.recover(1).entries()), log) == [1]


def test_ends_are_those_after_the_last_entry() -> None:
    world, log, moved = World(TWO_FILES), Log(0), Log(1)
    for _ in range(4):
        world.append(log, 3000)
    world.run()
    world.journal.append_mutation(log, Mutation.TRUNCATE, 2, lambda _: None)
    world.journal.append_mutation(moved, Mutation.LOG_START, 5, lambda _: None)
    world.run()
    world.journal.append_mutation(log, Mutation.LOG_START, 1, lambda _: None)
    world.run()
    assert world.journal.oldest(everything=True) == (3, {log: 2, moved: -1})


def test_a_batch_larger_than_every_file_gets_its_own() -> None:
    world, log = World(), Log(0)
    world.append(log, 100)
    world.append(log, 900_000)
    world.append(log, 100)
    assert not world.journal.has_room
    world.run()
    assert log.journaled == [1, 2], "the ring is over its limit, so the third waits for a release"
    assert world.pressure
    assert world.disk.files.open(f"{DIRECTORY}/journal-0002").size() > 900_000
    world.journal.release(1)
    world.run()
    assert log.journaled == [1, 2, 3]
    assert offsets(list(world.recover(1).entries()), log) == [1, 2]
    world.journal.release(2)
    world.run()
    assert world.journal.total_bytes <= SMALL.ring_bytes_max, "the large file does not stay"
    assert "journal-0002" not in world.disk.files.list_dir(DIRECTORY)
    assert offsets(list(world.recover(2).entries()), log) == [2]


def test_there_is_pressure_only_where_a_release_helps() -> None:
    world, log = World(JournalLimits(ring_bytes_max=16 << 10, file_bytes_max=16 << 10)), Log(0)
    world.append(log, 100_000)
    world.disk.stall("journal")
    world.run()
    assert not world.journal.under_pressure, "it waits for a larger file, not for a release"
    world.disk.release("journal")
    world.run()
    assert log.journaled == [1]
    assert not world.journal.under_pressure, "only the current file holds anything"
    assert world.journal.oldest() is None
    world.append(log, 5000)
    world.run()
    assert world.pressure
    assert world.journal.under_pressure
    oldest = world.journal.oldest()
    assert oldest is not None
    world.journal.release(oldest[0])
    world.run()
    assert log.journaled == [1, 2]
    assert not world.journal.under_pressure


def test_a_full_disk_is_back_pressure_and_ends_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    world, log = World(disk=SimDisk(SimClock(), capacity_bytes=40 << 10)), Log(0)
    fill(world, log)
    world.append(log, 3000)
    for _ in range(5):
        world.clock.advance(2000)
    assert world.journal.failed is None
    assert log.journaled[-1] < log.end
    assert len([record for record in caplog.records if "stays at" in record.message]) == 1
    assert world.disk.files.list_dir(DIRECTORY) == ["journal-0001"], "the unfinished file is gone"
    world.disk.capacity_bytes = None
    world.clock.advance(2000)
    assert log.journaled[-1] == log.end
    assert world.journal.has_room


def test_a_full_disk_can_be_waited_out_with_the_files_that_are_there() -> None:
    world, log = World(disk=SimDisk(SimClock(), capacity_bytes=40 << 10)), Log(0)
    for _ in range(10):
        fill(world, log)
        world.append(log, 3000)
        world.run()
        oldest = world.journal.oldest()
        assert oldest is not None
        world.journal.release(oldest[0])
        world.run()
    assert log.journaled[-1] == log.end


@pytest.mark.parametrize("operation", ["fail_write", "fail_sync", "fail_open"])
def test_a_file_that_cannot_be_made_is_not_used(operation: str) -> None:
    world, log = World(), Log(0)
    getattr(world.disk.faults, operation)(path="journal-0002", error=errno.EIO)
    fill(world, log)
    assert world.journal.failed is None
    assert world.disk.files.list_dir(DIRECTORY) == ["journal-0001"]
    world.clock.advance(2000)
    assert world.journal.has_room
    assert "journal-0002" not in world.disk.files.list_dir(DIRECTORY), "never again on the same pages"
    world.append(log)
    world.run()
    assert log.journaled[-1] == log.end


def test_a_restart_goes_on_with_the_files_that_are_there() -> None:
    world, log = World(), Log(0)
    while world.journal.total_bytes < 96 << 10:
        world.append(log, 3000)
        world.run()
    names = world.disk.files.list_dir(DIRECTORY)
    after = world.disk.crash()
    recovered = recover_from(after)
    again = World(disk=after, released=recovered)
    assert after.files.list_dir(DIRECTORY) == names
    assert again.journal.total_bytes == world.journal.total_bytes
    again.append(log)
    again.run()
    assert again.journal.durable_sequence == recovered + 1


def test_a_restart_with_a_lower_limit_removes_files() -> None:
    world, log = World(), Log(0)
    while world.journal.total_bytes < 96 << 10:
        world.append(log, 3000)
        world.run()
    after = world.disk.crash(keep="all")
    released = recover_from(after)
    limits = JournalLimits(ring_bytes_max=64 << 10, file_bytes_max=32 << 10, group_bytes_max=16 << 10)
    assert World(limits, after, released).journal.total_bytes == 64 << 10


def test_unfinished_files_of_an_earlier_run_are_removed() -> None:
    world = World()
    world.disk.files.open(f"{DIRECTORY}/journal-0002.new", create=True).close()
    after = world.disk.crash(keep="all")
    World(disk=after)
    assert after.files.list_dir(DIRECTORY) == ["journal-0001"]


def test_close_during_growth() -> None:
    world, log = World(), Log(0)
    world.disk.stall("journal")
    world.append(log, 15_000)
    world.append(log, 15_000)
    world.run()
    world.disk.release("journal", count=1)
    world.journal.close()
    world.disk.release("journal")
    world.run()
    assert world.journal.failed is None


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot have files"):
        JournalLimits(ring_bytes_max=4096, file_bytes_max=8192)


def recover_from(disk: SimDisk) -> int:
    return recover(disk.files, DIRECTORY, JOURNAL_ID, 0).last_sequence
