"""A disk for tests on which `kill -9` loses what a power cut would lose.

The kernel's page cache survives a killed process, so a kill alone proves little about `disk` durability. Here every
byte and every name that was not synced exists only in this process and is lost with it.

Faults are planned from outside, in a file with lines of `operation path-part errno-name [after]`, read before each
call:

    sync .log EIO            every sync of a file with `.log` in its path fails
    write journal EIO 40     40 such writes succeed, all later ones fail
    allocate .log ENOSPC
"""

from __future__ import annotations

import errno
import os
import posixpath
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from ottla.broker.adapters.jobs import JobThread
from ottla.broker.adapters.kernel import DIRECT_ALIGNMENT_MIN
from ottla.broker.adapters.volatile_names import FileNode, VolatileNames
from ottla.broker.adapters.volatile_pages import VolatileContent, named_error, os_error
from ottla.file_sync import sync_directory
from ottla.ports import Completion, DataFile, DiskQueue, FileSystem, ReadOnlyBuffer

T = TypeVar("T")


class FaultFile:
    """The fault plan. Without a path, or while the file is missing, nothing fails."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._calls: Counter[str] = Counter()
        """How many calls have matched each line of the plan."""

    def strike(self, operation: str, path: str) -> OSError | None:
        """Returns the error with which a call must fail, or None."""
        if self._path is None or not os.path.exists(self._path):
            return None
        with open(self._path, encoding="utf-8") as plan:
            lines = [line.split() for line in plan]
        for fields in lines:
            if len(fields) < 3 or fields[0] != operation or fields[1] not in path:
                continue
            line = " ".join(fields)
            self._calls[line] += 1
            if self._calls[line] > int(fields[3] if len(fields) > 3 else 0):
                return named_error(fields[2], path)
        return None


class VolatileFile:
    """Implements `ports.DataFile`."""

    def __init__(self, path: str, content: VolatileContent, faults: FaultFile, *, durable: bool) -> None:
        self._path = path
        self._content = content
        self._faults = faults
        self._durable = durable
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    @property
    def alignment(self) -> int:
        return DIRECT_ALIGNMENT_MIN if self._durable else 1

    def size(self) -> int:
        return self._open_content().size()

    def read_at(self, offset: int, length: int) -> bytes:
        return self._open_content().read(offset, length)

    def read_cached(self, offset: int, length: int) -> bytes | None:
        return self._open_content().read(offset, length)

    def write_at(self, offset: int, data: Sequence[ReadOnlyBuffer]) -> None:
        content = self._open_content()
        joined = b"".join(data)
        if offset % self.alignment or len(joined) % self.alignment:
            raise os_error(errno.EINVAL, self._path)
        if failure := self._faults.strike("write", self._path):
            raise failure
        if self._durable:
            content.write_through(offset, joined)
        else:
            content.write(offset, joined)

    def sync(self) -> None:
        content = self._open_content()
        if failure := self._faults.strike("sync", self._path):
            content.sync_and_fail()
            raise failure
        content.sync()

    def allocate(self, offset: int, length: int) -> None:
        if failure := self._faults.strike("allocate", self._path):
            raise failure
        self._open_content().allocate(offset, length)

    def clear(self, offset: int, length: int) -> None:
        self._open_content().write(offset, bytes(length))

    def truncate(self, size: int) -> None:
        self._open_content().truncate(size)

    def close(self) -> None:
        self._closed = True

    def _open_content(self) -> VolatileContent:
        if self._closed:
            raise os_error(errno.EBADF, self._path)
        return self._content


class VolatileFileSystem:
    """Implements `ports.FileSystem`."""

    def __init__(self, root: str, faults: FaultFile, writeback_share: float, rng: Random) -> None:
        self._names = VolatileNames(root)
        self._faults = faults
        self._writeback_share = writeback_share
        self._rng = rng

    def open(self, path: str, *, create: bool = False) -> VolatileFile:
        with self._names.lock:
            if create and self._names.find(path) is None:
                self._names.create_file(path)
            return VolatileFile(path, self._content(self._names.file(path)), self._faults, durable=False)

    def open_durable(self, path: str) -> VolatileFile:
        with self._names.lock:
            return VolatileFile(path, self._content(self._names.file(path)), self._faults, durable=True)

    def exists(self, path: str) -> bool:
        with self._names.lock:
            return self._names.find(path) is not None

    def list_dir(self, path: str) -> list[str]:
        with self._names.lock:
            return sorted(self._names.directory(path).entries)

    def make_dirs(self, path: str) -> None:
        with self._names.lock:
            self._names.make_dirs(path)

    def rename(self, source: str, target: str) -> None:
        with self._names.lock:
            self._names.rename(source, target)

    def remove(self, path: str) -> None:
        with self._names.lock:
            self._names.remove(path)

    def remove_tree(self, path: str) -> None:
        with self._names.lock:
            self._names.remove_tree(path)

    def sync_dir(self, path: str) -> None:
        if not self._names.contains(path):
            sync_directory(path)
            return
        if failure := self._faults.strike("sync", path):
            raise failure
        self._names.sync_dir(path)

    def read_file(self, path: str) -> bytes:
        with self._names.lock:
            content = self._content(self._names.file(path))
        return content.read(0, content.size())

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        if failure := self._faults.strike("sync", path):
            raise failure
        file = self.open(temporary, create=True)
        file.truncate(0)
        file.write_at(0, [data])
        file.sync()
        file.close()
        self.rename(temporary, path)
        self.sync_dir(posixpath.dirname(path))

    def begin_sync_all(self, path: str) -> None:
        """Not supported: unsynced data exists only in this process."""

    def free_bytes(self, path: str) -> int:
        answer = os.statvfs(self._names.root_path)
        return answer.f_bavail * answer.f_frsize

    def total_bytes(self, path: str) -> int:
        answer = os.statvfs(self._names.root_path)
        return answer.f_blocks * answer.f_frsize

    def _content(self, node: FileNode) -> VolatileContent:
        if node.content is None:
            node.content = VolatileContent(
                node.real_path(),
                create=node.real_parent is None,
                writeback_share=self._writeback_share,
                rng=self._rng,
            )
        return node.content


class VolatileDiskQueue:
    """Implements `ports.DiskQueue` with plain Python threads. Requests that were accepted but not performed are lost
    with the process."""

    def __init__(self, loop: AbstractEventLoop, name: str, *, ends_with_failure: bool = False) -> None:
        self._ends_with_failure = ends_with_failure
        self._failure: OSError | None = None
        """Used only by the thread."""
        self._requests = JobThread(loop, f"ottla-{name}")
        self._jobs = JobThread(loop, f"ottla-{name}-jobs")

    def write(self, file: DataFile, offset: int, data: Sequence[ReadOnlyBuffer], done: Completion) -> None:
        self._requests.call(lambda: self._write(file, offset, data), lambda _, error: _complete(done, error))

    def _write(self, file: DataFile, offset: int, data: Sequence[ReadOnlyBuffer]) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            file.write_at(offset, data)
        except OSError as error:
            if self._ends_with_failure:
                self._failure = error
            raise

    def sync(self, file: DataFile, done: Completion) -> None:
        self._requests.call(file.sync, lambda _, error: _complete(done, error))

    def call(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._jobs.call(job, done)

    def pending(self) -> int:
        return self._requests.pending() + self._jobs.pending()

    def close(self) -> None:
        self._requests.close()
        self._jobs.close()


def _complete(done: Completion, error: BaseException | None) -> None:
    """Reports any error to the caller as an OSError: every request must be answered."""
    done(error if error is None or isinstance(error, OSError) else OSError(errno.EIO, repr(error)))


class VolatileDisk:
    """Implements `ports.Disk`. A `writeback_share` of the written pages reaches the real file early, as if the kernel
    had written them back."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        root: str,
        *,
        fault_path: str | None = None,
        writeback_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        faults = FaultFile(fault_path)
        self.files: FileSystem = VolatileFileSystem(root, faults, writeback_share, Random(seed))
        self.journal_queue: DiskQueue = VolatileDiskQueue(loop, "journal", ends_with_failure=True)
        self.segment_queue: DiskQueue = VolatileDiskQueue(loop, "segment")
        self.sync_queue: DiskQueue = VolatileDiskQueue(loop, "sync")
        self.read_queue: DiskQueue = VolatileDiskQueue(loop, "read")
        self.compaction_queue: DiskQueue = VolatileDiskQueue(loop, "compact")
        self.catalog_queue: DiskQueue = VolatileDiskQueue(loop, "catalog")

    def close(self) -> None:
        """Completes the accepted requests. It syncs nothing: a clean end does not make unsynced data durable."""
        for queue in (
            self.journal_queue,
            self.segment_queue,
            self.sync_queue,
            self.read_queue,
            self.compaction_queue,
            self.catalog_queue,
        ):
            queue.close()
