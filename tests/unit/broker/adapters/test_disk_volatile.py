"""The volatile disk loses unsynced data with its process; otherwise it behaves as the real and the simulated disk."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.adapters.files import RealFileSystem
from ottla.broker.adapters.volatile import VolatileDisk
from ottla.ports import Disk, FileSystem
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk

BLOCK = 4096


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def files_of(loop: asyncio.AbstractEventLoop, root: Path, writeback_share: float = 0.0) -> FileSystem:
    return VolatileDisk(loop, str(root), writeback_share=writeback_share).files


def synced_file(files: FileSystem, path: str, data: bytes) -> None:
    file = files.open(path, create=True)
    file.write_at(0, [data])
    file.sync()
    files.sync_dir(path.rpartition("/")[0])


def test_unsynced_bytes_are_forgotten(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    files = files_of(loop, tmp_path)
    synced_file(files, path, b"synced")
    file = files.open(path)
    file.write_at(3, [b"lost", b" too"])
    file.truncate(9)
    assert file.read_at(0, 100) == b"synlost t"
    assert files_of(loop, tmp_path).read_file(path) == b"synced"
    file.sync()
    assert files_of(loop, tmp_path).read_file(path) == b"synlost t"


def test_unsynced_names_are_forgotten(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    root = str(tmp_path)
    files = files_of(loop, tmp_path)
    synced_file(files, f"{root}/a", b"a")
    synced_file(files, f"{root}/b", b"b")
    files.make_dirs(f"{root}/dir/sub")
    file = files.open(f"{root}/dir/sub/new", create=True)
    file.write_at(0, [b"new"])
    file.sync()
    files.sync_dir(f"{root}/dir/sub")
    files.rename(f"{root}/a", f"{root}/dir/a")
    files.remove(f"{root}/b")
    assert files.list_dir(root) == ["dir"]
    assert files.list_dir(f"{root}/dir") == ["a", "sub"]
    again = files_of(loop, tmp_path)
    assert again.list_dir(root) == ["a", "b"]


def test_synced_names_stay(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    root = str(tmp_path)
    files = files_of(loop, tmp_path)
    synced_file(files, f"{root}/gone", b"")
    files.make_dirs(f"{root}/dir/sub")
    synced_file(files, f"{root}/dir/sub/new", b"new")
    files.sync_dir(f"{root}/dir")
    files.rename(f"{root}/dir", f"{root}/renamed")
    files.remove(f"{root}/gone")
    files.open(f"{root}/empty", create=True)
    files.sync_dir(root)
    files.rename(f"{root}/renamed/sub/new", f"{root}/empty")
    again = files_of(loop, tmp_path)
    assert again.list_dir(root) == ["empty", "renamed"]
    assert again.read_file(f"{root}/empty") == b""
    assert again.read_file(f"{root}/renamed/sub/new") == b"new"
    again.remove_tree(f"{root}/renamed")
    again.sync_dir(root)
    assert files_of(loop, tmp_path).list_dir(root) == ["empty"]


def test_a_replaced_file_is_durable(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    files = files_of(loop, tmp_path)
    files.replace_file(path, b"a longer one")
    files.replace_file(path, b"2")
    assert files_of(loop, tmp_path).read_file(path) == b"2"
    assert os.listdir(tmp_path / ".volatile") == []


def test_early_writeback_leaves_a_part(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    files = files_of(loop, tmp_path, writeback_share=0.5)
    synced_file(files, path, b"")
    file = files.open(path)
    for page in range(64):
        file.write_at(page * BLOCK, [b"x" * BLOCK])
    assert file.read_at(0, 1 << 20) == b"x" * 64 * BLOCK
    after = files_of(loop, tmp_path).read_file(path)
    kept = {after[page * BLOCK : (page + 1) * BLOCK] for page in range(len(after) // BLOCK)}
    assert kept == {bytes(BLOCK), b"x" * BLOCK}


def test_faults_from_outside(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    plan = tmp_path / "faults"
    disk = VolatileDisk(loop, str(tmp_path / "data"), fault_path=str(plan))
    path = str(tmp_path / "data" / "journal-1")
    synced_file(disk.files, path, b"old")
    file = disk.files.open(path)
    plan.write_text("sync journal EIO\nwrite other ENOSPC\n")
    file.write_at(0, [b"new"])
    with pytest.raises(OSError, match="Input/output") as failure:
        file.sync()
    assert failure.value.errno == errno.EIO
    plan.unlink()
    file.sync()
    assert file.read_at(0, 3) == b"new"
    assert (tmp_path / "data" / "journal-1").read_bytes() == b"old", "a failed sync leaves the pages clean"


def test_faults_after_some_calls(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    plan = tmp_path / "faults"
    plan.write_text("write journal EIO 2\n")
    disk = VolatileDisk(loop, str(tmp_path / "data"), fault_path=str(plan))
    file = disk.files.open(str(tmp_path / "data" / "journal-1"), create=True)
    for _ in range(2):
        file.write_at(0, [b"x"])
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            file.write_at(0, [b"x"])


def test_the_queues(tmp_path: Path) -> None:
    async def use() -> list[object]:
        volatile = VolatileDisk(asyncio.get_running_loop(), str(tmp_path))
        disk: Disk = volatile
        seen: list[object] = []
        file = disk.files.open(str(tmp_path / "f"), create=True)
        disk.segment_queue.write(file, 0, [b"ab", b"c"], seen.append)
        disk.segment_queue.sync(file, seen.append)
        disk.segment_queue.write(disk.files.open_durable(str(tmp_path / "f")), 1, [b"x"], seen.append)
        disk.sync_queue.call(lambda: 7, lambda result, error: seen.append(result))
        volatile.close()
        return seen

    first, second, refused, job = asyncio.run(use())
    assert (first, second, job) == (None, None, 7)
    assert isinstance(refused, OSError)
    assert refused.errno == errno.EINVAL


def test_a_killed_process_loses_what_was_not_synced(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, signal
from ottla.broker.adapters.volatile import VolatileDisk
root = {str(tmp_path)!r}
files = VolatileDisk(asyncio.new_event_loop(), root).files
files.replace_file(root + "/kept", b"kept")
files.open(root + "/kept").write_at(0, [b"lost"])
files.open(root + "/lost", create=True).sync()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert (tmp_path / "kept").read_bytes() == b"kept"
    assert not (tmp_path / "lost").exists()


OFFSETS = st.integers(0, 3 * BLOCK)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), OFFSETS, st.binary(min_size=1, max_size=2 * BLOCK)),
        st.tuples(st.just("durable"), st.integers(0, 3), st.binary(min_size=1, max_size=1)),
        st.tuples(st.just("truncate"), OFFSETS, st.none()),
        st.tuples(st.just("clear"), OFFSETS, st.none()),
        st.tuples(st.just("sync"), st.none(), st.none()),
        st.tuples(st.just("allocate"), OFFSETS, st.none()),
    ),
    max_size=12,
)


def perform(files: FileSystem, path: str, action: tuple[str, int | None, bytes | None]) -> None:
    kind, number, data = action
    file = files.open(path)
    if kind == "write" and number is not None and data is not None:
        file.write_at(number, [data])
    elif kind == "durable" and number is not None and data is not None:
        files.open_durable(path).write_at(number * BLOCK, [data * BLOCK])
    elif kind == "truncate" and number is not None:
        file.truncate(number)
    elif kind == "clear" and number is not None:
        if number < file.size():
            file.clear(number, file.size() - number)
    elif kind == "allocate" and number is not None:
        file.allocate(number, BLOCK)
    else:
        file.sync()


@settings(max_examples=30)
@given(actions=ACTIONS, early=st.booleans())
def test_three_disks_agree(
    tmp_path_factory: pytest.TempPathFactory,
    actions: list[tuple[str, int | None, bytes | None]],
    early: bool,
) -> None:
    loop = asyncio.new_event_loop()
    real_root, volatile_root = tmp_path_factory.mktemp("real"), tmp_path_factory.mktemp("volatile")
    sim = SimDisk(SimClock())
    disks: list[tuple[FileSystem, str]] = [
        (RealFileSystem(), str(real_root)),
        (sim.files, "/data"),
        (files_of(loop, volatile_root, 0.5 if early else 0.0), str(volatile_root)),
    ]
    for files, root in disks:
        synced_file(files, f"{root}/f", b"start")
    for action in actions:
        for files, root in disks:
            perform(files, f"{root}/f", action)
        assert len({files.read_file(f"{root}/f") for files, root in disks}) == 1, action
    if not early and not any(kind == "durable" for kind, _, _ in actions):
        forgotten = files_of(loop, volatile_root).read_file(f"{volatile_root}/f")
        assert forgotten == sim.crash(keep="none").files.read_file("/data/f")
    loop.close()
