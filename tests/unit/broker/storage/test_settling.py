"""A start syncs what it replayed: all at once if it is much and the system supports it, otherwise file by file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.adapters import kernel
from ottla.broker.adapters.files import RealFileSystem
from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.segment import INDEX_SUFFIX
from ottla.broker.storage.startup.startup_sync import INDEXED_BYTES_MIN, LOGS_MIN
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from ottla.sim.files import SimFile, SimSyncAll
from tests.support.power_cut import PowerCut, PowerCutError
from tests.support.sim_broker import BrokerBench
from tests.support.sim_logs import LogBench

MANY = LOGS_MIN + 3
LARGE_RING = JournalLimits(ring_bytes_max=4 << 20, file_bytes_max=1 << 20, group_bytes_max=1 << 20)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of synced files in order, `all` for a sync of everything."""
    seen: list[str] = []

    def watch(owner: type, name: str, describe: Callable[[object], str]) -> None:
        original = getattr(owner, name)

        def watched(self: object) -> None:
            original(self)
            seen.append(describe(self))

        monkeypatch.setattr(owner, name, watched)

    watch(SimFile, "sync", lambda file: file.path if isinstance(file, SimFile) else "")
    watch(SimSyncAll, "finish", lambda _: "all")
    return seen


def filled(count: int) -> tuple[LogBench, list[list[bytes]]]:
    bench = LogBench(*["disk"] * count)
    return bench, [bench.fill(number, batches=1 + number % 3) for number in range(count)]


def contents(bench: LogBench) -> list[list[bytes]]:
    return [bench.read_all(number) for number in range(len(bench.configs))]


def test_many_logs_are_synced_at_once(syncs: list[str]) -> None:
    bench, batches = filled(MANY)
    bench.crash("none")
    syncs.clear()
    bench.start()
    assert [path for path in syncs if path.endswith(".log") or path == "all"] == ["all"]
    bench.restart("none")
    assert contents(bench) == batches
    assert bench.store.replayed.batches == 0


@pytest.mark.parametrize("case", ["few logs", "a system that cannot"])
def test_otherwise_one_by_one(case: str, syncs: list[str]) -> None:
    bench, batches = filled(3 if case == "few logs" else MANY)
    bench.crash("none")
    bench.disk.syncs_all = case == "few logs"
    syncs.clear()
    bench.start()
    assert "all" not in syncs
    assert len([path for path in syncs if path.endswith(".log")]) == len(batches)
    bench.restart("none")
    assert contents(bench) == batches
    assert bench.store.replayed.batches == 0


def test_a_failure_ends_the_start_and_the_next_one_writes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a second sync of the same pages (safety: failed-sync): the system may have marked them clean."""
    bench, batches = filled(MANY)
    bench.crash("none")
    finish = SimSyncAll.finish

    def fail(sync_all: SimSyncAll) -> None:
        bench.disk.faults.fail_sync()
        finish(sync_all)

    with monkeypatch.context() as patch:
        patch.setattr(SimSyncAll, "finish", fail)
        with pytest.raises(OSError, match="Input/output error"):
            bench.start()
    bench.restart("all")
    assert contents(bench) == batches
    bench.restart("none")
    assert contents(bench) == batches


def test_a_crash_at_any_operation_of_such_a_start() -> None:
    nth, started = 0, False
    while not started:
        nth += 11
        bench, batches = filled(MANY)
        bench.crash("none")
        power = PowerCut(bench.disk, nth)
        try:
            bench.start()
            power.call_off()
            started = True
        except PowerCutError:
            bench.crash("some", seed=nth)
            bench.start()
        assert contents(bench) == batches


def test_indexes_of_large_segments_are_kept_and_of_small_ones_learned_again() -> None:
    bench = LogBench("disk", "disk", settings={"segment_bytes": str(1 << 20), "index_interval_bytes": "4096"})
    large = bench.fill(0, batches=INDEXED_BYTES_MIN // 1000 - 40, value_bytes=1000)
    bench.flush()
    large += bench.fill(0, batches=60, value_bytes=1000)
    small = bench.fill(1, batches=30, value_bytes=1000)
    before = len(bench.disk.files.read_file(bench.path(f"{0:020d}{INDEX_SUFFIX}", 0)))
    bench.restart("none")
    assert len(bench.disk.files.read_file(bench.path(f"{0:020d}{INDEX_SUFFIX}", 0))) > before
    assert f"{0:020d}{INDEX_SUFFIX}" not in bench.names(1)
    bench.restart("none")
    assert contents(bench) == [large, small]
    small += bench.fill(1, batches=1)
    bench.flush()
    assert f"{0:020d}{INDEX_SUFFIX}" in bench.names(1)


def test_a_start_does_without_an_index_for_which_there_is_no_space() -> None:
    settings = {"segment_bytes": str(1 << 20), "index_interval_bytes": "4096"}
    bench = LogBench("disk", settings=settings, limits=LARGE_RING)
    batches = bench.fill(batches=2 * INDEXED_BYTES_MIN // 1000, value_bytes=1000)
    bench.crash("none")
    bench.disk.faults.fail_write(path=INDEX_SUFFIX, count=None, error=errno.ENOSPC)
    bench.start()
    assert bench.read_all() == batches
    assert bench.shared.reserve is not None
    assert bench.shared.reserve.is_held, "nothing was asked of what is kept back"


# -- the system call -------------------------------------------------------------------------------------------------


def test_a_real_file_system(tmp_path: Path) -> None:
    sync_all = RealFileSystem().begin_sync_all(str(tmp_path))
    if sync_all is None:
        pytest.skip("this system has no such call, or one that would not tell of failures")
    (tmp_path / "file").write_bytes(b"written")
    sync_all.finish()
    sync_all.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_all.finish()


@pytest.mark.parametrize(
    ("release", "kind", "expected"),
    [
        ("5.8.0", 0xEF53, True),
        ("6.18.44-generic", 0x58465342, True),
        ("10.1-rc3", 0x9123683E, True),
        ("5.7.19", 0xEF53, False),
        ("4.19.0-27-amd64", 0xEF53, False),
        ("unknown", 0xEF53, False),
        ("6.1.0", 0x65735546, False),  # FUSE
        ("6.1.0", 0, False),
    ],
)
def test_where_it_can_be_relied_on(
    release: str, kind: int, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(kernel._libc, "syncfs"):
        pytest.skip("there is no such call")
    names = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*names[:2], release, *names[3:])))
    monkeypatch.setattr(kernel, "_file_system_kind", lambda _: kind)
    assert (RealFileSystem().begin_sync_all(str(tmp_path)) is not None) == expected


def test_the_simulated_one_keeps_files_and_names() -> None:
    disk = SimDisk(SimClock())
    sync_all = disk.files.begin_sync_all("/data")
    assert sync_all is not None
    disk.files.make_dirs("/data/a")
    disk.files.open("/data/a/file", create=True).write_at(0, [b"written"])
    sync_all.finish()
    disk.files.open("/data/a/later", create=True)
    after = disk.crash(keep="none")
    assert after.files.list_dir("/data/a") == ["file"]
    assert after.files.read_file("/data/a/file") == b"written"


def test_the_simulated_one_fails_on_request() -> None:
    disk = SimDisk(SimClock())
    sync_all = disk.files.begin_sync_all("/data")
    assert sync_all is not None
    disk.faults.fail_sync(path="/data")
    with pytest.raises(OSError, match="Input/output error"):
        sync_all.finish()
    sync_all.finish()


# -- the catalog's own queue -----------------------------------------------------------------------------------------


async def test_a_long_flush_keeps_nobody_from_creating_topics() -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t")
    bench.disk.stall("sync")
    await bench.settle(6000)
    await bench.create("other")
    assert isinstance(await bench.produce("other"), int)
    bench.disk.release("sync")
