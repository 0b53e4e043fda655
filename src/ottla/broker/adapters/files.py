"""Files and directories of the operating system, as implementations of the ports."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import threading
from collections.abc import Callable, Sequence

from ottla.broker.adapters._disk_py import read_nowait as read_nowait_in_python
from ottla.broker.adapters._disk_py import sync_descriptor, write_all
from ottla.broker.adapters.buffers import BufferPool
from ottla.broker.adapters.kernel import (
    DIRECT_ALIGNMENT_MIN,
    allocate_keeping_size,
    can_sync_as_a_whole,
    direct_alignment,
    is_memory_file_system,
    sync_as_a_whole,
    zero_range,
)
from ottla.file_sync import sync_directory
from ottla.ports import ReadOnlyBuffer

FILE_MODE = 0o640
READ_BYTES_MAX = 1 << 30
"""Maximum size of a single read call, which returns at most 2 GiB."""
CLEAR_BYTES = 1 << 20

POOLED_BYTES_MIN = 64 * 1024
POOL_BYTES_MAX = 16 * 1024 * 1024

WriteAll = Callable[[int, int, Sequence[ReadOnlyBuffer]], float]
ReadNowait = Callable[[int, int, memoryview], int | None]

_pool = BufferPool(POOL_BYTES_MAX)
"""Buffers for reads from the page cache. Fresh memory of a megabyte is mapped, cleared and unmapped each time, which is
a third of the cost of such a read."""


def best_write_all() -> WriteAll:
    """Returns the extension's `write_all` if it is built, otherwise the Python one."""
    try:
        from ottla.broker.adapters._disk import write_all as write_all_natively
    except ImportError:
        return write_all
    return write_all_natively


def best_read_nowait() -> ReadNowait:
    """Returns the extension's `read_nowait` if it is built, otherwise the Python one."""
    try:
        from ottla.broker.adapters._page_cache import read_nowait
    except ImportError:
        return read_nowait_in_python
    return read_nowait


class RealFile:
    """Implements `ports.DataFile`, and `HeldFile` for the disk threads.

    One thread may close a file while others use it: the descriptors are closed when the last use ends. Otherwise their
    numbers could come to refer to another file in the middle of a read.

    A file opened with O_DIRECT has a second descriptor for reads, which go through the page cache and need no aligned
    memory.
    """

    def __init__(self, path: str, fd: int, *, read_fd: int | None = None, alignment: int = 1, durable: bool = False):
        self._path = path
        self._fd = fd
        self._read_fd = fd if read_fd is None else read_fd
        self._alignment = alignment
        self._syncs_after_write = durable and read_fd is None
        self._read_nowait = best_read_nowait()
        self._write_all = best_write_all()
        self._lock = threading.Lock()
        self._held = 0
        self._closed = False

    def __del__(self) -> None:
        if self._fd >= 0:
            self._close_descriptors()

    @property
    def path(self) -> str:
        return self._path

    @property
    def alignment(self) -> int:
        return self._alignment

    @property
    def syncs_after_write(self) -> bool:
        """True if direct writes are not supported: each write is followed by a sync instead."""
        return self._syncs_after_write

    def size(self) -> int:
        with self._in_use() as fd:
            return os.fstat(fd).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        with self._in_use():
            data = os.pread(self._read_fd, min(length, READ_BYTES_MAX), offset)
            if len(data) == length or not data:
                return data
            parts = [data]
            left = length - len(data)
            while left and (data := os.pread(self._read_fd, min(left, READ_BYTES_MAX), offset + length - left)):
                parts.append(data)
                left -= len(data)
            return b"".join(parts)

    def read_cached(self, offset: int, length: int) -> ReadOnlyBuffer | None:
        target = memoryview(_pool.allocate(length) if length >= POOLED_BYTES_MIN else bytearray(length))
        with self._in_use():
            try:
                count = self._read_nowait(self._read_fd, offset, target)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                return self.read_at(offset, length) if is_memory_file_system(self._path) else None
            if count is None or (count < length and offset + count < os.fstat(self._read_fd).st_size):
                return None
            return target[:count]

    def write_at(self, offset: int, data: Sequence[ReadOnlyBuffer]) -> None:
        self.write_and_time(offset, data)

    def write_and_time(self, offset: int, data: Sequence[ReadOnlyBuffer]) -> float:
        """Writes the buffers and returns how many seconds the write waited for the disk; 0 if it went into the page
        cache without waiting."""
        fd = self.hold()
        try:
            if fd < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
            if self._alignment > 1:
                data = [_aligned_copy([memoryview(part).cast("B") for part in data], offset, self._alignment)]
            waited_s = self._write_all(fd, offset, data)
            if self._syncs_after_write:
                sync_descriptor(fd)
            return waited_s
        finally:
            self.release()

    def sync(self) -> None:
        with self._in_use() as fd:
            sync_descriptor(fd)

    def allocate(self, offset: int, length: int) -> None:
        with self._in_use() as fd:
            allocate_keeping_size(fd, offset, length)

    def clear(self, offset: int, length: int) -> None:
        with self._in_use() as fd:
            if zero_range(fd, offset, length):
                return
            zeros, end = memoryview(bytes(min(length, CLEAR_BYTES))), offset + length
            while offset < end:
                piece = zeros[: end - offset]
                self._write_all(fd, offset, [piece])
                offset += len(piece)

    def truncate(self, size: int) -> None:
        with self._in_use() as fd:
            os.ftruncate(fd, size)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            unused = not self._held
        if unused:
            self._close_descriptors()

    def hold(self) -> int:
        """Returns the descriptor, which stays open until `release`. Returns -1 if the file is closed; system calls then
        fail."""
        with self._lock:
            self._held += 1
            return -1 if self._closed else self._fd

    def release(self) -> None:
        """Ends a use begun with `hold`. The last one closes the descriptors of a closed file."""
        with self._lock:
            self._held -= 1
            unused = self._closed and not self._held
        if unused:
            self._close_descriptors()

    def _in_use(self) -> _Use:
        return _Use(self)

    def _close_descriptors(self) -> None:
        with self._lock:
            descriptors = {self._fd, self._read_fd} - {-1}
            self._fd = self._read_fd = -1
        for fd in descriptors:
            os.close(fd)


class _Use:
    """A file's descriptor for the duration of one call. It is a class because a generator would cost as much as the
    read."""

    __slots__ = ("_file",)

    def __init__(self, file: RealFile) -> None:
        self._file = file

    def __enter__(self) -> int:
        fd = self._file.hold()
        if fd < 0:
            self._file.release()
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._file.path)
        return fd

    def __exit__(self, *_: object) -> None:
        self._file.release()


def _aligned_copy(views: list[memoryview], offset: int, alignment: int) -> memoryview:
    total = sum(map(len, views))
    if offset % alignment or total % alignment:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if not total:
        return memoryview(b"")
    copy = mmap.mmap(-1, total)
    for view in views:
        copy.write(view)
    return memoryview(copy)


class WholeFileSystem:
    """Implements `ports.SyncAll`. The kernel reports to a descriptor every failure since it was opened."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def finish(self) -> None:
        sync_as_a_whole(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealFileSystem:
    """Implements `ports.FileSystem`."""

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, FILE_MODE))

    def open_durable(self, path: str) -> RealFile:
        read_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        alignment = direct_alignment(path)
        direct = getattr(os, "O_DIRECT", None)
        if direct is not None and alignment is not None:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DSYNC | direct)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    os.close(read_fd)
                    raise
            else:
                return RealFile(path, fd, read_fd=read_fd, alignment=alignment, durable=True)
        return RealFile(path, read_fd, alignment=alignment or DIRECT_ALIGNMENT_MIN, durable=True)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        sync_directory(path)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                write_all(fd, 0, [memoryview(data)])
                sync_descriptor(fd)
            finally:
                os.close(fd)
            os.rename(temporary, path)
        except OSError:
            _remove_if_there(temporary)
            raise
        self.sync_dir(os.path.dirname(path) or ".")

    def begin_sync_all(self, path: str) -> WholeFileSystem | None:
        return WholeFileSystem(path) if can_sync_as_a_whole(path) else None

    def free_bytes(self, path: str) -> int:
        answer = os.statvfs(path)
        return answer.f_bavail * answer.f_frsize

    def total_bytes(self, path: str) -> int:
        answer = os.statvfs(path)
        return answer.f_blocks * answer.f_frsize


def _remove_if_there(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
