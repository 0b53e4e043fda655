"""Files and directories of the real disk, its clock, its lock and the directory id."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.adapters import _disk_py
from ottla.broker.adapters.clock import RealClock
from ottla.broker.adapters.data_dir import UnusableDirectoryError, open_data_directory
from ottla.broker.adapters.disk import RealDisk
from ottla.broker.adapters.files import ReadNowait, RealFile, RealFileSystem, best_read_nowait
from ottla.broker.adapters.kernel import direct_alignment, is_memory_file_system
from ottla.broker.adapters.lock import DirectoryInUseError, DirectoryLock
from ottla.ports import Clock, DataFile, Disk, FileSystem
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk

FILES: FileSystem = RealFileSystem()


def opened(tmp_path: Path, data: bytes = b"") -> DataFile:
    file = FILES.open(str(tmp_path / "f"), create=True)
    file.write_at(0, [data])
    return file


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "small"
    mounted.mkdir()
    if sys.platform != "linux" or not shutil.which("mount"):
        pytest.skip("needs mount")
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_read_and_write(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.write_at(3, [b"abc", memoryview(b"def"), bytearray(b"g")])
    assert file.size() == 10
    assert file.read_at(0, 100) == b"\0\0\0abcdefg"
    assert file.read_at(20, 5) == b""
    file.truncate(4)
    file.sync()
    assert file.read_at(0, 100) == b"\0\0\0a"
    assert file.alignment == 1
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file"):
        file.read_at(0, 1)


def test_what_is_cleared_keeps_its_space(tmp_path: Path, small_disk: Path) -> None:
    """On a file system that can zero a range itself, and on one where zeros have to be written."""
    for directory in (tmp_path, small_disk):
        file = opened(directory, b"x" * 40_000)
        file.sync()
        blocks = os.stat(file.path).st_blocks
        file.clear(10_001, 29_000)
        file.sync()
        assert file.read_at(0, 50_000) == b"x" * 10_001 + bytes(29_000) + b"x" * 999
        assert os.stat(file.path).st_blocks >= blocks
        file.close()


def test_blocking_writes_to_a_durable_file(tmp_path: Path) -> None:
    opened(tmp_path, bytes(16384)).sync()
    file = FILES.open_durable(str(tmp_path / "f"))
    file.write_at(8192, [b"a" * 4000, b"b" * 96])
    assert file.read_at(8192, 4096) == b"a" * 4000 + b"b" * 96
    with pytest.raises(OSError, match="Invalid"):
        file.write_at(1, [bytes(4096)])
    with pytest.raises(OSError, match="Invalid"):
        file.write_at(0, [bytes(5)])
    file.write_at(4096, [])
    assert file.read_at(0, 8192) == bytes(8192)
    file.close()


def test_a_descriptor_stays_open_until_its_last_user_is_done(tmp_path: Path) -> None:
    """Otherwise the number may stand for another file before the user's system call."""
    file = opened(tmp_path)
    assert isinstance(file, RealFile)
    handle = file.hold()
    assert file.hold() == handle
    file.close()
    file.release()
    os.fstat(handle)
    file.release()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handle)


def test_a_durable_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FILES.open_durable(str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        FILES.open(str(tmp_path / "missing"))


def test_the_alignment_is_a_block_of_the_drive(tmp_path: Path) -> None:
    opened(tmp_path)
    alignment = direct_alignment(str(tmp_path / "f"))
    assert alignment is None or alignment % 4096 == 0


@pytest.mark.parametrize("read_nowait", [best_read_nowait(), _disk_py.read_nowait], ids=["best", "python"])
def test_cached_reads(tmp_path: Path, read_nowait: ReadNowait, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path, b"0123456789" * 1000)
    monkeypatch.setattr(file, "_read_nowait", read_nowait)
    assert file.read_cached(5, 10) == b"5678901234"
    assert file.read_cached(9995, 100) == b"56789", "fewer only at the end of the file"
    assert file.read_cached(20_000, 100) == b""


@pytest.mark.parametrize("read_nowait", [best_read_nowait(), _disk_py.read_nowait], ids=["best", "python"])
def test_a_cached_read_that_fails(tmp_path: Path, read_nowait: ReadNowait) -> None:
    handle = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="Bad file") as failure:
            read_nowait(handle, 0, memoryview(bytearray(8)))
        assert failure.value.errno == errno.EBADF
    finally:
        os.close(handle)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="cannot drop a page cache here")
@pytest.mark.parametrize("read_nowait", [best_read_nowait(), _disk_py.read_nowait], ids=["best", "python"])
def test_a_read_that_would_wait(tmp_path: Path, read_nowait: ReadNowait, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path, os.urandom(1 << 20))
    file.sync()
    assert isinstance(file, RealFile)
    if is_memory_file_system(str(tmp_path)):
        pytest.skip("nothing waits on a tmpfs")
    monkeypatch.setattr(file, "_read_nowait", read_nowait)
    # The kernel keeps pages that are in use elsewhere, so retry until it has dropped them.
    deadline_s = time.monotonic() + 30
    while file.read_cached(0, 1 << 20) is not None:
        assert time.monotonic() < deadline_s, "the page cache is never empty, or a read waits for the disk"
        os.posix_fadvise(file.hold(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.release()
    assert len(file.read_at(0, 1 << 20)) == 1 << 20
    assert file.read_cached(0, 1 << 20) == file.read_at(0, 1 << 20)


def test_a_file_system_that_cannot_say_what_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, offset: int, target: object) -> int | None:
        raise OSError(errno.EOPNOTSUPP, "no")

    file = opened(tmp_path, b"abc")
    monkeypatch.setattr(file, "_read_nowait", refuse)
    monkeypatch.setattr("ottla.broker.adapters.files.is_memory_file_system", lambda path: False)
    assert file.read_cached(0, 3) is None
    monkeypatch.setattr("ottla.broker.adapters.files.is_memory_file_system", lambda path: True)
    assert file.read_cached(0, 3) == b"abc"


def test_allocated_space_reads_as_before(tmp_path: Path) -> None:
    file = opened(tmp_path, b"abc")
    file.allocate(0, 1 << 20)
    assert file.size() == 3
    assert file.read_at(0, 100) == b"abc"


def test_a_full_disk(small_disk: Path) -> None:
    file = FILES.open(str(small_disk / "f"), create=True)
    with pytest.raises(OSError, match="No space") as failure:
        file.allocate(0, 1 << 20)
    assert failure.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        file.write_at(0, [bytes(1 << 20)])
    assert FILES.free_bytes(str(small_disk)) == 0
    with pytest.raises(OSError, match="No space"):
        FILES.replace_file(str(small_disk / "g"), b"g")
    assert FILES.list_dir(str(small_disk)) == ["f"]
    file.truncate(0)
    FILES.replace_file(str(small_disk / "g"), b"g")
    file.close()


def test_memory_is_told_from_a_disk(small_disk: Path) -> None:
    assert is_memory_file_system(str(small_disk))
    assert is_memory_file_system(str(small_disk / "not" / "there" / "yet"))
    if sys.platform == "linux":
        assert not is_memory_file_system("/proc")


def test_directories(tmp_path: Path) -> None:
    root = str(tmp_path / "d")
    FILES.make_dirs(f"{root}/a/b")
    FILES.make_dirs(f"{root}/a/b")
    FILES.replace_file(f"{root}/a/b/f", b"1")
    FILES.replace_file(f"{root}/a/b/f", b"2")
    FILES.rename(f"{root}/a/b/f", f"{root}/a/b/g")
    FILES.sync_dir(f"{root}/a/b")
    assert FILES.list_dir(f"{root}/a/b") == ["g"]
    assert FILES.read_file(f"{root}/a/b/g") == b"2"
    FILES.remove(f"{root}/a/b/g")
    assert not FILES.exists(f"{root}/a/b/g")
    FILES.remove_tree(root)
    assert not FILES.exists(root)
    assert FILES.free_bytes(str(tmp_path)) > 0


async def test_the_real_disk_and_clock_are_what_the_ports_want() -> None:
    loop = asyncio.get_running_loop()
    real_disk = RealDisk(loop)
    disk: Disk = real_disk
    clock: Clock = RealClock(loop)
    reached = asyncio.Event()
    clock.call_later(1, lambda: clock.call_soon(reached.set))
    cancelled: list[int] = []
    clock.call_later(0, lambda: cancelled.append(1)).cancel()
    before = clock.monotonic_ms()
    await reached.wait()
    assert clock.monotonic_ms() > before
    assert clock.now_ms() > 1_700_000_000_000
    assert cancelled == []
    assert disk.journal_queue.pending() == 0
    real_disk.close()


def test_the_lock_names_its_holder(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    lock = DirectoryLock(directory)
    with pytest.raises(DirectoryInUseError, match=f"in use by the process {os.getpid()}\\. Stop that broker"):
        DirectoryLock(directory)
    lock.release()
    lock.release()
    DirectoryLock(directory).release()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    program = f"""
import os, sys
from ottla.broker.adapters.lock import DirectoryLock
lock = DirectoryLock({str(tmp_path)!r})
print("locked", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"locked\n"
    with pytest.raises(DirectoryInUseError, match=str(holder.pid)):
        DirectoryLock(str(tmp_path))
    holder.kill()
    holder.wait()
    holder.stdout.close()
    holder.stdin.close()
    DirectoryLock(str(tmp_path)).release()


@pytest.fixture(params=["real", "sim"])
def any_files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileSystem, str]:
    if request.param == "real":
        return FILES, str(tmp_path / "data")
    return SimDisk(SimClock()).files, "/data/broker"


def test_a_new_directory_gets_an_identity_and_keeps_it(any_files: tuple[FileSystem, str]) -> None:
    files, path = any_files
    first = open_data_directory(files, path, node_id=3)
    assert len(first.cluster_id) == 22
    assert open_data_directory(files, path, node_id=3, cluster_id=first.cluster_id) == first
    with pytest.raises(UnusableDirectoryError, match=r"belongs to node 3.*Start it with node\.id=3"):
        open_data_directory(files, path, node_id=4)
    with pytest.raises(UnusableDirectoryError, match="belongs to the cluster"):
        open_data_directory(files, path, node_id=3, cluster_id="other")


def test_the_identity_is_durable() -> None:
    disk = SimDisk(SimClock())
    first = open_data_directory(disk.files, "/data/broker", node_id=1)
    assert open_data_directory(disk.crash(keep="none").files, "/data/broker", node_id=1) == first


def test_a_newer_format_is_refused(any_files: tuple[FileSystem, str]) -> None:
    files, path = any_files
    open_data_directory(files, path, node_id=1)
    text = files.read_file(f"{path}/FORMAT").replace(b"version=1", b"version=2")
    files.replace_file(f"{path}/FORMAT", text)
    with pytest.raises(UnusableDirectoryError, match=r"newer Ottla \(format 2; this version reads up to 1\)\. Upgrade"):
        open_data_directory(files, path, node_id=1)
    files.replace_file(f"{path}/FORMAT", b"version=1\n")
    with pytest.raises(UnusableDirectoryError, match="is damaged"):
        open_data_directory(files, path, node_id=1)


def test_a_directory_of_someone_else_is_refused(any_files: tuple[FileSystem, str]) -> None:
    files, path = any_files
    files.make_dirs(path)
    files.replace_file(f"{path}/.lock", b"")
    files.replace_file(f"{path}/holiday.jpg", b"")
    with pytest.raises(UnusableDirectoryError, match=r"holiday\.jpg\)\. Give an empty directory"):
        open_data_directory(files, path, node_id=1)
    files.remove(f"{path}/holiday.jpg")
    open_data_directory(files, path, node_id=1)
