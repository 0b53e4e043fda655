"""The flush from the journal to synced segments: its order, and failures of each step."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.startup.checkpoint import decode_checkpoint
from ottla.broker.storage.startup.state_file import decode_state
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.sim.files import SimFile, SimFileSystem
from tests.support.sim_logs import LogBench, key_of

SEGMENT = "0" * 20 + ".log"


class Acknowledgements:
    """Stands in for a partition."""

    high_watermark = 0

    def __init__(self, bench: LogBench, number: int = 0) -> None:
        self._log = bench.log(number)
        self._log.events = self
        self.ends: list[int] = []
        self.failure: OSError | None = None

    def on_acknowledged(self) -> None:
        self.ends.append(self._log.acknowledged_end)

    def on_log_failed(self, error: OSError) -> None:
        self.failure = error


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Syncs of files and directories, and replaced files, in the order in which the disk performed them."""
    seen: list[str] = []

    def watch(owner: type, name: str, describe: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def watched(self: object, *args: object, **kwargs: object) -> object:
            result = original(self, *args, **kwargs)
            seen.append(describe(self, *args))
            return result

        monkeypatch.setattr(owner, name, watched)

    watch(SimFile, "sync", lambda file: f"sync {file.path.rpartition('/')[2]}")
    watch(SimFileSystem, "sync_dir", lambda _, path: f"sync directory {path.count('/') - 1}")
    watch(SimFileSystem, "replace_file", lambda _, path, __: f"replace {path.rpartition('/')[2]}")
    return seen


# -- order (safety: journal-space) -----------------------------------------------------------------------------------


def test_segment_then_directory_then_state_then_checkpoint(calls: list[str]) -> None:
    bench = LogBench("disk")
    calls.clear()
    bench.fill(batches=5)
    assert calls == []
    bench.flusher.run(everything=True)
    bench.settle()
    assert calls == [
        f"sync {SEGMENT}",
        "sync directory 2",
        "sync directory 1",
        "replace state",
        "replace checkpoint",
    ]


def test_the_journal_is_released_after_the_checkpoint_is_durable() -> None:
    bench = LogBench("disk")
    bench.fill(batches=5)
    before = bench.journal.released_sequence
    bench.disk.faults.fail_sync(path="/data/checkpoint")
    bench.flusher.run(everything=True)
    bench.settle()
    assert bench.journal.released_sequence == before
    assert any("checkpoint" in report for report in bench.reports)
    bench.flush()
    assert bench.journal.released_sequence > before


def test_the_state_says_no_more_than_the_segments_have(calls: list[str]) -> None:
    """A state ahead of its log would answer a lost batch as a duplicate."""
    bench = LogBench("disk")
    bench.fill(batches=1)
    bench.append(producer=(7, 0, 0))
    bench.settle()
    bench.disk.stall("journal")
    bench.append(producer=(7, 0, 1))
    bench.flush()
    state = decode_state(bench.disk.files.read_file(bench.path("state")))
    assert state is not None
    entry = state.producers.get(7)
    assert entry is not None
    assert state.offset == 2
    assert [batch.last_sequence for batch in entry.batches] == [0]


def test_a_flush_takes_what_is_journaled_and_leaves_the_rest() -> None:
    bench = LogBench("disk")
    bench.fill(batches=5)
    bench.disk.stall("journal")
    bench.append()
    bench.flush()
    checkpoint = decode_checkpoint(bench.disk.files.read_file("/data/checkpoint"))
    assert checkpoint.points[key_of(0)].offset >= 5
    bench.disk.release("journal")
    bench.settle()
    assert bench.log().acknowledged_end == 6


def test_only_logs_of_the_oldest_file_are_flushed_under_pressure() -> None:
    bench = LogBench("disk", "disk")
    bench.fill(0, batches=60, value_bytes=500)
    bench.fill(1, batches=1)
    bench.flusher.run()
    bench.settle()
    checkpoint = decode_checkpoint(bench.disk.files.read_file("/data/checkpoint"))
    assert set(checkpoint.points) == {key_of(0)}
    assert 0 < checkpoint.released_sequence < bench.journal.durable_sequence


# -- a full ring causes back-pressure, not a deadlock ------------------------------------------------------------


def test_more_than_the_ring_holds_at_once_is_taken_in_turns() -> None:
    """Appends that wait for the ring cannot keep the flush from freeing it."""
    bench = LogBench("disk")
    batches = bench.fill(batches=300, value_bytes=1500)
    bench.settle(1000)
    assert bench.log().acknowledged_end == 300
    assert bench.read_all() == batches
    bench.restart("none")
    assert bench.read_all() == batches


def test_a_batch_larger_than_every_journal_file() -> None:
    limits = JournalLimits(ring_bytes_max=256 * 1024, file_bytes_max=32 * 1024, group_bytes_max=16 * 1024)
    bench = LogBench("disk", limits=limits, settings={"segment_bytes": "1000000"})
    bench.disk.slow_down("journal", 5.0)
    batches = bench.fill(batches=2, value_bytes=100_000)
    bench.settle(100)
    assert bench.log().acknowledged_end == 2
    bench.restart("none")
    assert bench.read_all() == batches


def test_a_ring_of_one_file() -> None:
    limits = JournalLimits(ring_bytes_max=32 * 1024, file_bytes_max=32 * 1024, group_bytes_max=16 * 1024)
    bench = LogBench("disk", limits=limits)
    batches = bench.fill(batches=200, value_bytes=500)
    bench.settle(1000)
    assert bench.log().acknowledged_end == 200
    assert bench.read_all() == batches


def test_stalled_segments_hold_acknowledgements_back_when_the_ring_is_full_and_lose_nothing() -> None:
    bench = LogBench("disk")
    for queue in ("segment", "sync"):
        bench.disk.stall(queue)
    batches = bench.fill(batches=300, value_bytes=1500)
    acknowledged = bench.log().acknowledged_end
    assert 0 < acknowledged < 300
    for queue in ("segment", "sync"):
        bench.disk.release(queue)  # type: ignore[arg-type]  # the same
    bench.settle(1000)
    assert bench.log().acknowledged_end == 300
    bench.restart("none")
    assert bench.read_all() == batches


def test_who_asks_during_a_round_gets_another() -> None:
    """A signal that the ring is full must not be lost during a round for another reason."""
    bench = LogBench("disk", "cache")
    bench.fill(1, batches=3)
    bench.disk.stall("sync")
    bench.flusher.run(logs=[bench.log(1)])
    bench.settle()
    bench.fill(0, batches=60, value_bytes=1500)
    bench.flusher.run()
    before = bench.journal.released_sequence
    bench.disk.release("sync")
    bench.settle()
    assert bench.journal.released_sequence > before


# -- a sync or a write of a segment fails (safety: failed-sync) ------------------------------------------------------


@pytest.mark.parametrize("waiting", [False, True], ids=["one round", "another round waits"])
def test_a_failed_sync_is_not_tried_again_on_the_same_file(waiting: bool) -> None:
    """The second sync would succeed although the pages are lost."""
    bench = LogBench("disk")
    batches = bench.fill(batches=10)
    bench.disk.faults.fail_sync(path=SEGMENT)
    bench.flusher.run(everything=True)
    if waiting:
        bench.flusher.run(lambda: None, everything=True)
    bench.settle()
    bench.flush()
    bench.restart("none")
    assert bench.read_all() == batches


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_segment_is_written_anew_while_appends_go_on(operation: str) -> None:
    bench = LogBench("disk", "disk")
    batches = bench.fill(batches=10)
    other = bench.fill(1, batches=3)
    if operation == "write":
        bench.disk.faults.fail_write(path=SEGMENT)
    else:
        bench.disk.faults.fail_sync(path=SEGMENT)
    bench.flusher.run(everything=True)
    for _ in range(60):
        batch = bench.append()
        assert isinstance(batch, bytes)
        batches.append(batch)
        bench.clock.run_one()
        bench.clock.run_one()
    bench.settle(1000)
    assert bench.log().failed is None
    assert bench.read_all() == batches
    bench.flush()
    bench.restart("none")
    assert (bench.read_all(), bench.read_all(1)) == (batches, other)


@pytest.mark.parametrize("batches_meanwhile", [0, 5, 60])
def test_a_segment_that_is_written_anew_has_the_space_that_was_promised(batches_meanwhile: int) -> None:
    """Accepted records have their space, although the disk is full now (safety: full-disk)."""
    bench = LogBench("disk", settings={"segment_bytes": str(1 << 20)})
    batches = bench.fill(batches=10)
    bench.disk.faults.fail_sync(path=SEGMENT)
    bench.flusher.run(everything=True)
    for _ in range(batches_meanwhile):
        batch = bench.append(value_bytes=1500)
        assert isinstance(batch, bytes)
        batches.append(batch)
        bench.clock.run_one()
    bench.settle(1000)
    log = bench.log()
    assert any("rewriting it from the journal" in line for line in bench.reports)
    bench.disk.capacity_bytes = bench.disk.used_bytes
    for segment in log.segments:
        assert segment.appended_end <= segment.allocated_end
        segment.file.allocate(0, segment.allocated_end)  # raises if that needs space on the full disk
    assert (log.written_end, log.failed) == (len(batches), None)
    bench.disk.capacity_bytes = None
    bench.restart("none")
    assert bench.read_all() == batches


def test_a_segment_that_fails_again_and_again_fails_the_log_and_loses_nothing() -> None:
    bench = LogBench("disk", "disk")
    batches = bench.fill(batches=10)
    failed = bench.store.directory_of(key_of(0))
    bench.disk.faults.fail_sync(path=failed, count=None)
    bench.flusher.run(everything=True)
    bench.settle(5000)
    assert bench.log().failed is not None
    assert isinstance(bench.append(), Refused)
    assert bench.read_all() == batches, "what was acknowledged stays readable"
    # The other log is not affected, and the flusher still works.
    other = bench.fill(1, batches=30)
    bench.flush()
    bench.restart("none")
    assert (bench.read_all(), bench.read_all(1)) == (batches, other)


def test_a_failed_directory_sync_never_moves_the_recovery_point() -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=10)
    bench.disk.faults.fail_sync(path=bench.store.directory_of(key_of(0)), nth=2)
    bench.flusher.run(everything=True)
    bench.settle()
    assert bench.log().failed is not None, "a second try might be told that all is well"
    bench.flush()
    bench.restart("none")
    assert bench.read_all() == batches


def test_a_cache_log_whose_sync_fails_has_failed_and_the_journal_goes_on() -> None:
    """A log without journal entries must not hold the journal's space."""
    bench = LogBench("disk", "cache")
    acknowledged = Acknowledgements(bench, 1)
    bench.fill(1, batches=50)
    bench.disk.faults.fail_sync(path=bench.store.directory_of(key_of(1)), count=None)
    bench.flush()
    assert bench.log(1).failed is not None
    assert acknowledged.failure is not None
    for _ in range(10):
        bench.fill(0, batches=40, value_bytes=500)
        bench.flusher.want(bench.log(1))
        bench.flusher.run(everything=True)
        bench.settle()
    assert bench.log(0).acknowledged_end == 400
    assert bench.journal.released_sequence == bench.journal.durable_sequence


# -- the journal fails ---------------------------------------------------------------------------------------------


def test_a_failed_journal_ends_disk_logs_and_nothing_else() -> None:
    bench = LogBench("disk", "disk", "cache")
    batches = bench.fill(0, batches=20)
    idle = bench.fill(1, batches=3)
    cached = bench.fill(2, batches=3)
    acknowledgements = Acknowledgements(bench)
    bench.disk.faults.fail_write(path="/journal/", count=None)
    bench.append(0)
    bench.settle()
    assert acknowledgements.ends == []
    assert acknowledgements.failure is not None
    assert bench.log(0).acknowledged_end == 20
    refused = bench.append(0)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.kafka_storage_error
    # A log without pending appends finds out with its next append, which is not acknowledged either.
    bench.append(1)
    bench.settle()
    assert bench.log(1).acknowledged_end == 3
    assert isinstance(bench.append(1), Refused)
    cached += bench.fill(2, batches=40)
    assert [bench.read_all(number) for number in range(3)] == [batches, idle, cached]


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_failed_journal_does_not_keep_a_flush_waiting(when: str) -> None:
    """Cache logs are still flushed, and the broker can still stop."""
    bench = LogBench("disk", "cache")
    bench.fill(0, batches=5)
    cached = bench.fill(1, batches=30)
    bench.disk.faults.fail_write(path="/journal/", count=None)
    bench.append(0)
    if when == "before":
        bench.settle()
    bench.flush()
    bench.fill(1, batches=3)
    bench.restart("none")
    assert bench.read_all(1) == cached


def test_a_write_that_fails_for_good_does_not_keep_a_flush_waiting() -> None:
    bench = LogBench("cache", "cache")
    bench.fill(0, batches=3)
    bench.disk.faults.fail_write(path=bench.store.directory_of(key_of(0)), count=None)
    bench.append(0)
    other = bench.fill(1, batches=30)
    bench.flush()
    assert bench.log(0).failed is not None
    bench.restart("none")
    assert bench.read_all(1) == other


# -- a full disk (safety: full-disk) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/state", "/data/checkpoint", "/journal/"])
def test_a_full_disk_in_the_middle_of_a_flush_heals(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = LogBench("disk", "cache")
    batches = bench.fill(0, batches=10)
    full = True
    original = SimFileSystem.replace_file

    def replace_file(self: SimFileSystem, target: str, data: bytes) -> None:
        if full and path in target:
            raise OSError(errno.ENOSPC, "no space left", target)
        original(self, target, data)

    monkeypatch.setattr(SimFileSystem, "replace_file", replace_file)
    for _ in range(5):
        bench.flusher.run(everything=True)
        bench.settle()
        for _ in range(40):
            batch = bench.append(0, value_bytes=500)
            batches += [batch] if isinstance(batch, bytes) else []
        bench.settle()
    assert bench.log(0).failed is None
    full = False
    assert bench.shared.reserve is not None
    bench.shared.reserve.hold()
    bench.flush()
    batches += bench.fill(0, batches=100, value_bytes=500)
    bench.settle(1000)
    assert bench.log(0).acknowledged_end == len(batches)
    assert bench.journal.released_sequence > 0
    bench.restart("none")
    assert bench.read_all(0) == batches


# -- concurrent deletion -------------------------------------------------------------------------------------------


def test_a_flush_does_not_bring_a_deleted_log_back() -> None:
    bench = LogBench("disk", "disk")
    bench.fill(0, batches=30)
    bench.fill(1, batches=3)
    bench.disk.stall("sync")
    bench.flusher.run(everything=True)
    bench.settle()
    bench.store.delete(bench.log(0))
    bench.settle()
    bench.disk.release("sync")
    bench.settle()
    bench.flush()
    assert not bench.disk.files.exists(bench.store.directory_of(key_of(0)))
    checkpoint = decode_checkpoint(bench.disk.files.read_file("/data/checkpoint"))
    assert set(checkpoint.points) == {key_of(1)}
    assert bench.journal.released_sequence == bench.journal.durable_sequence


@pytest.mark.parametrize("case", ["many batches", "a new epoch"])
def test_a_producer_that_is_far_ahead_of_the_journal_is_not_forgotten(case: str) -> None:
    """Only those of its batches that are not in the journal are still remembered. The older state file, which has more,
    stays, and so do the expired segments from which the rest is rebuilt."""
    bench = LogBench("disk", settings={"retention_ms": "1000", "segment_bytes": "1024"})
    for sequence in range(2):
        bench.append(producer=(7, 0, sequence), value_bytes=900)
    bench.settle(2000)
    bench.disk.stall("journal")
    if case == "many batches":
        for sequence in range(2, 9):
            bench.append(producer=(7, 0, sequence), value_bytes=900)
    else:
        bench.append(producer=(7, 1, 0), value_bytes=900)
    for _ in range(3):
        bench.flush()
        bench.retain()
    assert bench.log().start_offset == 2
    bench.disk.files.sync_dir(bench.store.directory_of(key_of(0)))  # makes removals durable
    bench.restart("none")
    assert bench.log().start_offset == 2
    entry = bench.log().producers.get(7)
    assert entry is not None
    assert (entry.epoch, [batch.last_sequence for batch in entry.batches]) == (0, [0, 1])


def test_nothing_is_flushed_while_a_segment_is_written_anew() -> None:
    """Its file failed to sync, and the next sync would succeed: a checkpoint of that would be wrong."""
    bench = LogBench("disk", "disk")
    batches = bench.fill(batches=10)
    bench.disk.faults.fail_sync(path=SEGMENT)
    bench.disk.faults.fail_open(path=".rewrite", count=None, error=errno.ENOSPC)
    for _ in range(3):
        bench.flusher.run(everything=True)
        bench.settle(100)
    bench.restart("none")
    assert bench.read_all() == batches


def test_a_segment_written_anew_has_its_name_before_the_journal_forgets_it() -> None:
    bench = LogBench("disk")
    for sequence in range(10):
        bench.append(producer=(7, 0, sequence))
    bench.settle()
    bench.flush()
    batches = bench.read_all()
    for sequence in range(10, 15):
        batch = bench.append(producer=(7, 0, sequence))
        assert isinstance(batch, bytes)
        batches.append(batch)
    bench.settle()
    bench.disk.faults.fail_sync(path=SEGMENT)
    bench.disk.stall("journal")
    for sequence in range(15, 23):
        bench.append(producer=(7, 0, sequence))
    # No state is written (the producer is too far ahead), so nothing else syncs the directory.
    bench.flusher.run(everything=True)
    bench.settle(1000)
    bench.flush()
    assert bench.journal.released_sequence == bench.journal.durable_sequence
    bench.restart("none")
    assert bench.read_all() == batches
