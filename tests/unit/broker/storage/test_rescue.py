"""A log that failed for good frees its space in the journal and loses nothing."""

from __future__ import annotations

import pytest

from ottla.broker.storage.data_layout import key_of_log_name, log_name
from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.truncation import Truncation
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import LogKey, PartitionIndex
from tests.support.sim_logs import LogBench, key_of, offsets

RING = JournalLimits(ring_bytes_max=64 * 1024, file_bytes_max=16 * 1024, group_bytes_max=8 * 1024)
RESCUED = f"/data/rescued/{log_name(key_of(0))}"


def failing_bench(*, flushed: int = 0, unflushed: int = 10) -> tuple[LogBench, list[bytes]]:
    """Log 0 is about to fail for good; log 1 is healthy."""
    bench = LogBench("disk", "disk", limits=RING)
    batches = bench.fill(0, batches=flushed)
    if flushed:
        bench.flush()
    batches += bench.fill(0, batches=unflushed)
    bench.disk.faults.fail_sync(path=bench.store.directory_of(key_of(0)), count=None)
    return bench, batches


def fail(bench: LogBench) -> None:
    """The first round detects the failure, at the latest the second one rescues the log."""
    for _ in range(2):
        bench.flusher.run(everything=True)
        bench.settle(2000)
    assert bench.log(0).failed is not None


def rescued_names(bench: LogBench) -> list[str]:
    return bench.disk.files.list_dir(RESCUED) if bench.disk.files.exists(RESCUED) else []


@pytest.mark.parametrize("flushed", [0, 30])
def test_what_only_the_journal_had_comes_back_after_the_journal_has_forgotten_it(flushed: int) -> None:
    bench, batches = failing_bench(flushed=flushed)
    fail(bench)
    bench.flush()
    assert bench.journal.released_sequence == bench.journal.durable_sequence
    assert rescued_names(bench) == [f"{flushed:020d}-{flushed + 10:020d}.log"]
    assert bench.read_all(0) == batches, "what was acknowledged stays readable"
    bench.restart("none")
    assert bench.log(0).failed is None
    assert bench.read_all(0) == batches
    batches += bench.fill(0)
    bench.restart("none")
    assert bench.read_all(0) == batches
    assert not bench.disk.files.exists(RESCUED)


def test_batches_that_were_on_their_way_follow_in_a_second_file() -> None:
    bench, batches = failing_bench()
    bench.disk.stall("journal")
    late = bench.append(0)
    assert isinstance(late, bytes)
    fail(bench)
    assert len(rescued_names(bench)) == 1
    bench.disk.release("journal")
    bench.settle()
    assert bench.log(0).acknowledged_end == 11
    bench.flush()
    assert bench.journal.released_sequence == bench.journal.durable_sequence
    assert len(rescued_names(bench)) == 2
    bench.restart("none")
    assert bench.read_all(0) == [*batches, late]


@pytest.mark.parametrize("flushed", [0, 30])
def test_a_moved_start_is_kept_too(flushed: int) -> None:
    bench, batches = failing_bench(flushed=flushed)
    fail(bench)
    for start in (flushed + 3, flushed + 7):
        bench.log(0).advance_start(start, lambda _: None)
        bench.settle()
        bench.flush()
    assert bench.journal.released_sequence == bench.journal.durable_sequence
    bench.restart("none")
    assert bench.log(0).start_offset == flushed + 7
    assert bench.read_all(0) == batches[flushed + 7 :]
    bench.restart("none")
    assert bench.read_all(0) == batches[flushed + 7 :]


def test_the_journal_keeps_what_cannot_be_rescued_and_says_so_once() -> None:
    bench, batches = failing_bench()
    bench.disk.faults.fail_sync(path="/rescued", count=None)
    fail(bench)
    for _ in range(3):
        bench.flush()
    assert bench.journal.released_sequence < bench.journal.durable_sequence
    assert len([line for line in bench.reports if "keep their space in the journal" in line]) == 1
    bench.restart("none")
    assert bench.read_all(0) == batches


def test_a_rescue_that_failed_is_tried_again() -> None:
    bench, batches = failing_bench()
    bench.disk.faults.fail_sync(path="/rescued")
    fail(bench)
    bench.flush()
    assert bench.journal.released_sequence == bench.journal.durable_sequence
    bench.restart("none")
    assert bench.read_all(0) == batches


def test_an_entry_that_the_journal_lost_is_no_reason_to_forget_the_others() -> None:
    """The journal is damaged where a failed log's batches are: the remaining ones stay where they are."""
    bench, _ = failing_bench()
    bench.disk.damage("/data/journal/journal-0001", 2000)
    before = bench.journal.released_sequence
    fail(bench)
    bench.flush()
    assert bench.journal.released_sequence == before
    assert any("keep their space in the journal" in line for line in bench.reports)


def test_a_checkpoint_that_was_not_written_does_not_shorten_what_is_rescued() -> None:
    """The segments are ahead of the durable checkpoint, and the log fails before the next one."""
    bench = LogBench("disk", "disk", limits=RING)
    batches = bench.fill(0, batches=10)
    bench.disk.faults.fail_sync(path="/data/checkpoint")
    bench.flusher.run(everything=True)
    bench.settle()
    batches += bench.fill(0, batches=5)
    bench.disk.faults.fail_sync(path=bench.store.directory_of(key_of(0)), count=None)
    bench.disk.faults.fail_sync(path="/data/checkpoint", count=None)
    fail(bench)
    assert rescued_names(bench) == [f"{0:020d}-{15:020d}.log"]
    bench.restart("none")
    assert bench.read_all(0) == batches
    assert bench.log(0).damages == []


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_rescued_goes_with_its_topic(restarted: bool) -> None:
    bench, _ = failing_bench()
    fail(bench)
    bench.flush()
    assert rescued_names(bench)
    bench.store.delete(bench.log(0))
    if restarted:
        bench.settle()
        del bench.configs[key_of(0)]
        bench.restart("none")
    bench.settle()
    assert not bench.disk.files.exists(RESCUED)
    assert not bench.disk.files.exists("/data/set-aside")


def test_a_log_that_is_deleted_while_it_is_rescued() -> None:
    """The topic is deleted during the rescue, which completes; its files are removed."""
    bench, _ = failing_bench()
    bench.flusher.run(everything=True)
    bench.settle(1000)
    bench.disk.stall("sync")
    bench.flusher.run(everything=True)
    bench.store.delete(bench.log(0))
    bench.settle()
    bench.disk.release("sync")
    bench.settle()
    bench.fill(1)
    bench.flush()
    assert bench.journal.released_sequence == bench.journal.durable_sequence
    assert not bench.disk.files.exists(RESCUED)


def test_rescued_batches_of_no_known_topic_are_set_aside() -> None:
    bench, _ = failing_bench()
    fail(bench)
    bench.flush()
    del bench.configs[key_of(0)]
    bench.restart("none")
    assert bench.disk.files.list_dir(f"/data/set-aside/{log_name(key_of(0))}.rescued")
    assert not bench.disk.files.exists(RESCUED)


@pytest.mark.parametrize("place", ["middle", "end"])
def test_damage_in_a_rescued_file_is_named_and_the_log_goes_on_above_it(place: str) -> None:
    bench, batches = failing_bench()
    fail(bench)
    bench.flush()
    path = f"{RESCUED}/{rescued_names(bench)[0]}"
    damaged = 4 if place == "middle" else 9
    bench.disk.damage(path, sum(map(len, batches[:damaged])) + 80)
    for _ in range(2):
        bench.restart("none")
        assert bench.read(damaged) == ErrorCode.corrupt_message
        assert [(damage.first_offset, damage.next_offset) for damage in bench.log(0).damages] == [
            (damaged, damaged + 1)
        ]
        assert bench.log(0).end_offset == 10
        for offset in set(range(10)) - {damaged}:
            found = bench.read(offset)
            assert isinstance(found, list)
            assert found[0] == batches[offset]
    assert offsets(bench.fill(0, batches=1)) == [10]


def test_what_was_taken_back_is_not_rescued() -> None:
    bench = LogBench("disk", "disk", limits=RING)
    batches = bench.fill(0, batches=10)
    Truncation(bench.log(0), bench.flusher, 6, lambda _: None).begin()
    bench.settle()
    batches = batches[:6] + bench.fill(0, batches=2)
    bench.disk.faults.fail_sync(path=bench.store.directory_of(key_of(0)), count=None)
    fail(bench)
    bench.flush()
    assert bench.journal.released_sequence == bench.journal.durable_sequence
    bench.restart("none")
    assert bench.read_all(0) == batches
    assert bench.log(0).damages == []


def test_a_failed_log_takes_nothing_though_it_was_rescued() -> None:
    bench, _ = failing_bench()
    fail(bench)
    bench.flush()
    assert isinstance(bench.append(0), Refused)


@pytest.mark.parametrize("key", [key_of(3), LogKey(key_of(3).topic_id, PartitionIndex(12), 4)])
def test_a_log_is_known_by_its_directory(key: LogKey) -> None:
    assert key_of_log_name(log_name(key)) == key


@pytest.mark.parametrize("name", ["", "lost+found", "0" * 32, f"{'0' * 32}-0.deleted", f"{'g' * 32}-0"])
def test_other_names_are_no_logs(name: str) -> None:
    assert key_of_log_name(name) is None
