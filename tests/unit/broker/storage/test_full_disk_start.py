"""A start on a full disk: acknowledged batches are replayed into the allocated space of their segments, and small files
use the reserved space (safety: full-disk)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.reserve import PIECE_BYTES, PIECES, RESERVE_BYTES, SpaceReserve
from ottla.protocol.model.errors import Refused
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from ottla.sim.files import SimFile, SimFileSystem
from tests.support.sim_logs import LIMITS, LogBench

LARGE_RING = JournalLimits(ring_bytes_max=16 << 20, file_bytes_max=4 << 20, group_bytes_max=1 << 20)


def fill_up(bench: LogBench) -> None:
    """Fills the rest of the disk."""
    bench.disk.capacity_bytes = bench.disk.used_bytes


@pytest.fixture
def greedy(monkeypatch: pytest.MonkeyPatch) -> list[LogBench]:
    """Other programs take all space that the files of these benches give back."""
    benches: list[LogBench] = []

    def watch(owner: type, name: str, path_of: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def watched(self: object, *args: object) -> object:
            before = [bench.disk.used_bytes for bench in benches]
            result = original(self, *args)
            for bench, used_bytes in zip(benches, before, strict=True):
                if bench.disk.capacity_bytes is not None and "/logs/" in path_of(self, *args):
                    bench.disk.capacity_bytes -= max(used_bytes - bench.disk.used_bytes, 0)
            return result

        monkeypatch.setattr(owner, name, watched)

    watch(SimFile, "truncate", lambda file, _: file.path)
    watch(SimFileSystem, "remove", lambda _, path: path)
    return benches


def have_space(bench: LogBench) -> None:
    bench.disk.capacity_bytes = None
    assert bench.shared.reserve is not None
    assert bench.shared.reserve.hold()


# -- starting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [0, 50])
def test_a_broker_that_was_killed_starts_on_a_full_disk(flushed: int, greedy: list[LogBench]) -> None:
    bench = LogBench("disk", "disk", "cache")
    greedy.append(bench)
    batches = bench.fill(0, batches=flushed)
    if flushed:
        bench.flush()
    batches += bench.fill(0, batches=70)
    other, cached = bench.fill(1, batches=3), bench.fill(2, batches=60)
    bench.crash("all")
    fill_up(bench)
    bench.start()
    assert (bench.read_all(0), bench.read_all(1), bench.read_all(2)) == (batches, other, cached)
    assert isinstance(bench.append(0), Refused)
    assert any("is full" in line for line in bench.reports)
    have_space(bench)
    batches += bench.fill(0, batches=30)
    bench.restart("none")
    assert bench.read_all(0) == batches


def test_it_starts_again_and_again_on_a_full_disk(greedy: list[LogBench]) -> None:
    bench = LogBench("disk")
    greedy.append(bench)
    batches = bench.fill(batches=70)
    for _ in range(5):
        bench.crash("all")
        fill_up(bench)
        bench.start()
        assert bench.read_all() == batches


def test_a_start_without_any_space_says_so_and_loses_nothing() -> None:
    """After a power cut, other programs took the space that was allocated and never synced."""
    bench = LogBench("disk", settings={"segment_bytes": str(64 << 20)}, limits=LARGE_RING)
    batches = bench.fill(batches=110, value_bytes=100_000)
    bench.crash("none")
    fill_up(bench)
    with pytest.raises(OSError, match="free some space, nothing is lost") as caught:
        bench.start()
    assert caught.value.errno == errno.ENOSPC
    bench.clock.advance(1000)  # pending work of the failed attempts does not disturb the one that succeeds
    bench.disk.capacity_bytes = bench.disk.used_bytes + (32 << 20)
    bench.start()
    bench.settle()
    assert bench.read_all() == batches


def test_attempts_that_failed_do_not_disturb_the_one_that_succeeds() -> None:
    """The replay fills many segments; sealing them is background work that belongs to one attempt."""
    bench = LogBench("disk")
    batches = bench.fill(batches=150, value_bytes=900)
    bench.crash("none")
    bench.disk.capacity_bytes = bench.disk.used_bytes + 20 * 4096
    bench.start()
    bench.settle(1000)
    have_space(bench)
    batches += bench.fill(batches=3)
    assert bench.read_all() == batches
    bench.restart("none")
    assert bench.read_all() == batches


def test_space_that_was_allocated_stays_with_its_segment(greedy: list[LogBench]) -> None:
    """More than the reserve: the journal's entries must be replayed to their previous positions."""
    bench = LogBench("disk", settings={"segment_bytes": str(64 << 20)}, limits=LARGE_RING)
    greedy.append(bench)
    batches = bench.fill(batches=1)
    bench.flush()
    batches += bench.fill(batches=110, value_bytes=100_000)
    bench.crash("all")
    fill_up(bench)
    bench.start()
    assert bench.read_all() == batches


# -- reserved space --------------------------------------------------------------------------------------------------


def disk_with(free_bytes: int) -> SimDisk:
    return SimDisk(SimClock(), capacity_bytes=free_bytes)


def write_file(disk: SimDisk, name: str, size: int) -> None:
    disk.files.replace_file(f"/data/{name}", bytes(size))


def test_a_job_gets_as_much_as_it_needs_and_the_rest_stays() -> None:
    disk = disk_with(2 * RESERVE_BYTES)
    reserve = SpaceReserve(disk.files, "/data")
    assert reserve.hold()
    write_file(disk, "ballast", disk.files.free_bytes("/data"))
    reserve.use_for(lambda: write_file(disk, "first", 2 * PIECE_BYTES))
    assert not reserve.is_held
    write_file(disk, "more ballast", disk.files.free_bytes("/data"))
    # After a crash, the next start finds the remaining reserve.
    again = SpaceReserve(disk.files, "/data")
    assert not again.hold()
    again.use_for(lambda: write_file(disk, "second", (PIECES - 2) * PIECE_BYTES))
    with pytest.raises(OSError, match="No space left"):
        again.use_for(lambda: write_file(disk, "third", 1))


def test_it_outlives_a_power_cut() -> None:
    disk = disk_with(2 * RESERVE_BYTES)
    assert SpaceReserve(disk.files, "/data").hold()
    disk = disk.crash(keep="none")
    write_file(disk, "ballast", disk.files.free_bytes("/data"))
    again = SpaceReserve(disk.files, "/data")
    assert again.hold()
    again.use_for(lambda: write_file(disk, "first", RESERVE_BYTES))


def test_it_is_taken_again_only_if_as_much_stays_free() -> None:
    disk = disk_with(2 * RESERVE_BYTES)
    reserve = SpaceReserve(disk.files, "/data")
    assert reserve.hold()
    write_file(disk, "ballast", RESERVE_BYTES)
    reserve.use_for(lambda: write_file(disk, "first", 1))
    disk.files.remove("/data/ballast")
    write_file(disk, "ballast", PIECE_BYTES)
    assert not reserve.hold()
    disk.files.remove("/data/ballast")
    disk.files.remove("/data/first")
    assert reserve.hold()
    assert disk.files.free_bytes("/data") == RESERVE_BYTES


def test_other_failures_are_none_of_its_business() -> None:
    disk = disk_with(2 * RESERVE_BYTES)
    reserve = SpaceReserve(disk.files, "/data")
    assert reserve.hold()
    disk.faults.fail_sync(path="/data/first")
    with pytest.raises(OSError, match="Input/output error"):
        reserve.use_for(lambda: write_file(disk, "first", 1))
    assert reserve.is_held


def test_a_disk_without_room_for_it_gives_none() -> None:
    disk = disk_with(2 * RESERVE_BYTES - 4096)
    assert not SpaceReserve(disk.files, "/data").hold()
    assert disk.files.list_dir("/data") == []


def test_a_piece_that_lost_its_space_is_not_counted() -> None:
    disk = disk_with(2 * RESERVE_BYTES)
    assert SpaceReserve(disk.files, "/data").hold()
    file = disk.files.open("/data/reserve-3")
    file.truncate(0)
    file.close()
    write_file(disk, "ballast", disk.files.free_bytes("/data"))
    reserve = SpaceReserve(disk.files, "/data")
    assert not reserve.hold()
    reserve.use_for(lambda: write_file(disk, "first", (PIECES - 1) * PIECE_BYTES))


def test_the_ring_of_these_tests_fits_into_the_reserve() -> None:
    assert LIMITS.ring_bytes_max < RESERVE_BYTES < LARGE_RING.ring_bytes_max


def test_space_that_is_kept_holds_zeros_and_counts_as_spare() -> None:
    """Written but unacknowledged bytes are discarded; a clean stop frees their space."""
    bench = LogBench("disk")
    batches = bench.fill(batches=2)
    bench.flush()
    path, end = bench.log().active.path, bench.log().active.appended_end
    bench.crash("all")
    bench.disk.files.open(path).write_at(end, [b"x" * 500])
    bench.start()
    active = bench.log().active
    assert active.file.read_at(end, 1000) == bytes(500)
    assert active.has_spare_space
    batches += bench.fill(batches=1)
    bench.restart("none")
    assert bench.read_all() == batches
