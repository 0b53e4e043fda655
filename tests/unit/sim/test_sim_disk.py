"""The simulated disk keeps synced data, and of the rest whatever the seed determines."""

from __future__ import annotations

import errno

import pytest

from ottla.ports import Disk
from ottla.sim.clock import SimClock
from ottla.sim.content import SECTOR_BYTES
from ottla.sim.disk import SimDisk

SEEDS = range(40)


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def disk(clock: SimClock) -> SimDisk:
    return SimDisk(clock, seed=1)


def synced_file(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.files.open(path, create=True)
    file.write_at(0, [data])
    file.sync()
    disk.files.sync_dir(path.rpartition("/")[0])
    file.close()


def test_it_is_a_disk(disk: SimDisk) -> None:
    port: Disk = disk
    port.files.make_dirs("/data/a/b")
    file = port.files.open("/data/a/b/f", create=True)
    file.write_at(3, [b"abc", memoryview(b"def"), bytearray(b"g")])
    assert file.size() == 10
    assert file.read_at(0, 100) == b"\0\0\0abcdefg"
    assert file.read_cached(3, 2) == b"ab"
    file.truncate(4)
    file.truncate(6)
    assert file.read_at(0, 100) == b"\0\0\0a\0\0"
    assert port.files.list_dir("/data/a") == ["b"]
    port.files.rename("/data/a", "/data/c")
    assert port.files.read_file("/data/c/b/f") == b"\0\0\0a\0\0"
    port.files.remove_tree("/data/c")
    assert not port.files.exists("/data/c")
    with pytest.raises(FileNotFoundError):
        port.files.open("/data/c/b/f")


def test_synced_content_survives_every_crash(disk: SimDisk) -> None:
    synced_file(disk, "/data/f", b"x" * 5000)
    file = disk.files.open("/data/f")
    file.write_at(5000, [b"y" * 5000])
    for seed in SEEDS:
        after = disk.crash(seed).files.read_file("/data/f")
        assert after[:5000] == b"x" * 5000
        assert set(after[5000:]) <= set(b"y\0")


def test_unsynced_content_survives_in_part_by_seed(disk: SimDisk) -> None:
    synced_file(disk, "/data/f", b"x" * 16 * SECTOR_BYTES)
    file = disk.files.open("/data/f")
    file.write_at(0, [b"1" * 8 * SECTOR_BYTES])
    file.write_at(4 * SECTOR_BYTES, [b"2" * 8 * SECTOR_BYTES])
    outcomes = {disk.crash(seed).files.read_file("/data/f") for seed in range(200)}
    assert outcomes == {disk.crash(seed).files.read_file("/data/f") for seed in range(200)}
    versions = [{image[at * SECTOR_BYTES] for image in outcomes} for at in range(16)]
    assert versions[0] == set(b"x1")
    assert versions[5] == set(b"x12"), "an older version of a page may be the one that was written back"
    assert versions[11] == set(b"x2")
    assert versions[12] == set(b"x")
    out_of_order = [image for image in outcomes if image[0] == ord("x") and image[11 * SECTOR_BYTES] == ord("2")]
    assert out_of_order


def test_kill_keeps_the_page_cache_but_does_not_sync_it(disk: SimDisk) -> None:
    synced_file(disk, "/data/f", b"x")
    disk.files.open("/data/f").write_at(0, [b"y"])
    disk.files.open("/data/new", create=True)
    killed = disk.crash(keep="all")
    assert killed.files.read_file("/data/f") == b"y"
    assert killed.files.exists("/data/new")
    cut = killed.crash(keep="none")
    assert cut.files.read_file("/data/f") == b"x"
    assert not cut.files.exists("/data/new")


def test_names_need_a_sync_of_their_directory(disk: SimDisk) -> None:
    synced_file(disk, "/data/old", b"old")
    file = disk.files.open("/data/new", create=True)
    file.write_at(0, [b"new"])
    file.sync()
    disk.files.rename("/data/old", "/data/renamed")
    assert disk.crash(keep="none").files.list_dir("/data") == ["old"]
    outcomes = {tuple(disk.crash(seed).files.list_dir("/data")) for seed in SEEDS}
    assert outcomes == {("old",), ("new", "old"), ("renamed",), ("new", "renamed")}


def test_a_directory_sync_keeps_names(disk: SimDisk) -> None:
    synced_file(disk, "/data/gone", b"")
    disk.files.make_dirs("/data/sub")
    disk.files.remove("/data/gone")
    disk.files.open("/data/sub/unsynced", create=True)
    disk.files.sync_dir("/data")
    after = disk.crash(keep="none")
    assert after.files.list_dir("/data") == ["sub"]
    assert after.files.list_dir("/data/sub") == []


def test_a_rename_across_directories_is_one_step(disk: SimDisk) -> None:
    disk.files.make_dirs("/data/a")
    disk.files.make_dirs("/data/b")
    disk.files.sync_dir("/data")
    synced_file(disk, "/data/a/f", b"content")
    disk.files.rename("/data/a/f", "/data/b/f")
    for seed in SEEDS:
        after = disk.crash(seed)
        names = after.files.list_dir("/data/a") + after.files.list_dir("/data/b")
        assert names == ["f"]
    disk = disk.crash(keep="all")
    disk.files.sync_dir("/data/b")
    assert disk.crash(keep="none").files.list_dir("/data/a") == []


def test_replace_file_is_durable(disk: SimDisk) -> None:
    disk.files.replace_file("/data/checkpoint", b"1")
    disk.files.replace_file("/data/checkpoint", b"2")
    assert disk.crash(keep="none").files.read_file("/data/checkpoint") == b"2"


def test_durable_writes_need_no_sync(disk: SimDisk) -> None:
    synced_file(disk, "/data/j", bytes(16384))
    file = disk.files.open_durable("/data/j")
    assert file.alignment == 4096
    file.write_at(4096, [b"j" * 4096])
    assert disk.crash(keep="none").files.read_file("/data/j") == bytes(4096) + b"j" * 4096 + bytes(8192)
    with pytest.raises(OSError, match="Invalid"):
        disk.crash(keep="none").files.open_durable("/data/j").write_at(1, [b"j" * 4096])


def test_a_direct_write_does_not_sync_the_rest_of_the_file(disk: SimDisk) -> None:
    file = disk.files.open("/data/j", create=True)
    disk.files.sync_dir("/data")
    file.write_at(0, [b"b" * 3 * 4096])
    disk.files.open_durable("/data/j").write_at(4096, [b"d" * 4096])
    assert disk.durable_bytes("/data/j") == bytes(4096) + b"d" * 4096
    for seed in SEEDS:
        assert disk.crash(seed).files.read_file("/data/j")[4096:8192] == b"d" * 4096


def test_completions_come_in_order_on_the_virtual_loop(disk: SimDisk, clock: SimClock) -> None:
    seen: list[object] = []
    file = disk.files.open("/data/f", create=True)
    disk.files.sync_dir("/data")
    disk.segment_queue.write(file, 0, [b"a"], lambda error: seen.append(("write", error)))
    disk.segment_queue.sync(file, lambda error: seen.append(("sync", error)))
    disk.segment_queue.call(lambda: 7, lambda result, error: seen.append(("call", result, error)))
    assert seen == []
    assert disk.segment_queue.pending() == 3
    clock.run_until_idle()
    assert sorted(map(str, seen)) == ["('call', 7, None)", "('sync', None)", "('write', None)"]
    assert seen.index(("write", None)) < seen.index(("sync", None))
    assert disk.crash(keep="none").files.read_file("/data/f") == b"a"


def test_a_crash_tears_the_pending_write(disk: SimDisk, clock: SimClock) -> None:
    synced_file(disk, "/data/j", bytes(8192))
    file = disk.files.open_durable("/data/j")
    disk.stall("journal")
    done: list[OSError | None] = []
    disk.journal_queue.write(file, 0, [b"x" * 4096], done.append)
    disk.journal_queue.write(file, 4096, [b"y" * 4096], done.append)
    clock.advance(1000)
    assert done == []
    outcomes = {disk.crash(seed).files.read_file("/data/j") for seed in range(200)}
    assert bytes(8192) in outcomes
    assert b"x" * 4096 + b"y" * 4096 in outcomes
    torn = [image for image in outcomes if len(set(image[:4096])) == 2]
    assert torn
    for image in outcomes:
        for at in range(0, 8192, SECTOR_BYTES):
            assert len(set(image[at : at + SECTOR_BYTES])) == 1
        if image[4096:] != bytes(4096):
            assert image[:4096] == b"x" * 4096, "the second write starts after the first is done"
    clock.run_until_idle()
    assert done == [], "a machine that is off completes nothing"


def test_release_lets_a_stalled_queue_go_on(disk: SimDisk, clock: SimClock) -> None:
    file = disk.files.open("/data/f", create=True)
    done: list[OSError | None] = []
    disk.stall("segment")
    for at in range(3):
        disk.segment_queue.write(file, at, [b"a"], done.append)
    disk.release("segment", 1)
    clock.run_until_idle()
    assert len(done) == 1
    disk.release("segment")
    clock.run_until_idle()
    assert done == [None, None, None]


def test_a_slow_disk(disk: SimDisk, clock: SimClock) -> None:
    file = disk.files.open("/data/f", create=True)
    disk.slow_down("segment", 10)
    done: list[float] = []
    for _ in range(2):
        disk.segment_queue.sync(file, lambda error: done.append(clock.monotonic_ms()))
    clock.advance(100)
    assert done == [10, 20]


def test_a_failed_sync_leaves_the_pages_clean(disk: SimDisk) -> None:
    synced_file(disk, "/data/f", b"")
    file = disk.files.open("/data/f")
    lost = 0
    for number in range(20):
        file.write_at(number * SECTOR_BYTES, [b"x" * SECTOR_BYTES])
        disk.faults.fail_sync(path="/f")
        with pytest.raises(OSError, match="Input/output") as failure:
            file.sync()
        assert failure.value.errno == errno.EIO
        file.sync()
        kept = disk.durable_bytes("/data/f")[number * SECTOR_BYTES :][:SECTOR_BYTES]
        lost += kept != b"x" * SECTOR_BYTES
    assert file.read_at(0, 1) == b"x", "readers still see the page cache"
    assert 0 < lost < 20


def test_the_nth_write_fails(disk: SimDisk) -> None:
    file = disk.files.open("/data/f", create=True)
    disk.faults.fail_write(2, path="/f", count=None, error=errno.EROFS)
    file.write_at(0, [b"a"])
    for _ in range(2):
        with pytest.raises(OSError, match="Read-only"):
            file.write_at(1, [b"b"])
    disk.faults.clear()
    file.write_at(1, [b"b"])


def test_a_full_disk(disk: SimDisk) -> None:
    disk.capacity_bytes = 3 * 4096
    file = disk.files.open("/data/f", create=True)
    file.allocate(0, 8192)
    with pytest.raises(OSError, match="No space") as failure:
        file.write_at(4096, [b"x" * 3 * 4096])
    assert failure.value.errno == errno.ENOSPC
    assert file.size() == 3 * 4096, "what fits is written"
    assert disk.files.free_bytes("/data") == 0
    with pytest.raises(OSError, match="No space"):
        disk.files.replace_file("/data/g", b"g")
    assert not disk.files.exists("/data/g")
    file.truncate(4096)
    disk.files.replace_file("/data/g", b"g")
    disk.files.remove("/data/f")
    assert disk.used_bytes == 2 * 4096, "an open file keeps its space"
    file.close()
    assert disk.used_bytes == 4096
    disk.capacity_bytes = None
    disk.files.open("/data/f", create=True).write_at(0, [b"x" * 100_000])


def test_lost_and_misdirected_writes(disk: SimDisk) -> None:
    synced_file(disk, "/data/j", bytes(16384))
    file = disk.files.open_durable("/data/j")
    disk.faults.lose_write(path="/j")
    file.write_at(0, [b"x" * 4096])
    assert file.read_at(0, 4096) == bytes(4096)
    disk.faults.misdirect_write(path="/j", shift_bytes=8192)
    file.write_at(0, [b"x" * 4096])
    assert file.read_at(0, 4096) == bytes(4096)
    assert file.read_at(8192, 4096) == b"x" * 4096


def test_damage_wipe_and_a_cold_cache(disk: SimDisk) -> None:
    synced_file(disk, "/data/f", b"\0" * 10)
    file = disk.files.open("/data/f")
    disk.damage("/data/f", 3, mask=0x80)
    assert disk.crash(keep="none").files.read_file("/data/f")[3] == 0x80
    disk = disk.crash(keep="all")
    file = disk.files.open("/data/f")
    disk.drop_page_cache()
    assert file.read_cached(0, 1) is None
    disk.warm_page_cache()
    assert file.read_cached(0, 1) == b"\0"
    disk.wipe("/data")
    assert disk.crash(keep="none").files.list_dir("/data") == []


def test_a_changed_buffer_is_a_bug_of_the_caller(disk: SimDisk, clock: SimClock) -> None:
    file = disk.files.open("/data/f", create=True)
    buffer = bytearray(b"abc")
    disk.segment_queue.write(file, 0, [buffer], lambda error: None)
    buffer[0] = 0
    with pytest.raises(AssertionError, match="a buffer changed"):
        clock.run_until_idle()


def test_close_finishes_what_was_accepted(disk: SimDisk) -> None:
    file = disk.files.open("/data/f", create=True)
    done: list[object] = []
    disk.segment_queue.write(file, 0, [b"a"], done.append)
    disk.segment_queue.call(lambda: disk.files.make_dirs("/data/d"), lambda result, error: done.append(error))
    disk.segment_queue.close()
    assert done == [None, None]
    with pytest.raises(RuntimeError):
        disk.segment_queue.sync(file, done.append)


def test_jobs_report_their_exception(disk: SimDisk, clock: SimClock) -> None:
    errors: list[BaseException | None] = []
    disk.segment_queue.call(lambda: disk.files.read_file("/data/missing"), lambda result, error: errors.append(error))
    clock.run_until_idle()
    assert isinstance(errors[0], FileNotFoundError)
