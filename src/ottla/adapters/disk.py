"""The real disk: files of the operating system, and queues with threads of their own."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ottla.adapters._disk_py import DiskThread as DiskThreadInPython
from ottla.adapters._disk_py import HeldFile
from ottla.adapters.files import RealFile, RealFileSystem
from ottla.adapters.jobs import JobThread
from ottla.ports import Completion, DataFile, DiskQueue, FileSystem, ReadOnlyBuffer

T = TypeVar("T")


class DiskThread(Protocol):
    """What `_disk.pyx` and `_disk_py.py` both are."""

    def write(self, file: HeldFile, offset: int, data: Sequence[ReadOnlyBuffer], done: Completion) -> None: ...

    def sync(self, file: HeldFile, done: Completion) -> None: ...

    def pending(self) -> int: ...

    def finished_count(self) -> int: ...

    def close(self) -> None: ...


DiskThreadType = Callable[[AbstractEventLoop, str], DiskThread]


def best_disk_thread() -> DiskThreadType:
    """The one that needs no interpreter lock, if it was built."""
    try:
        from ottla.adapters._disk import DiskThread as NativeDiskThread
    except ImportError:
        return DiskThreadInPython
    return NativeDiskThread


class RealDiskQueue:
    """Implements `ports.DiskQueue`. Used from the event loop's thread alone. A thread starts with its first work."""

    def __init__(self, loop: AbstractEventLoop, name: str, *, thread_type: DiskThreadType | None = None) -> None:
        self._loop = loop
        self._name = f"ottla-{name}"
        self._thread_type = thread_type or best_disk_thread()
        self._thread: DiskThread | None = None
        self._jobs = JobThread(loop, f"ottla-{name}-jobs")
        self._closed = False

    def write(self, file: DataFile, offset: int, data: Sequence[ReadOnlyBuffer], done: Completion) -> None:
        (self._thread or self._started()).write(_held(file), offset, data, done)

    def sync(self, file: DataFile, done: Completion) -> None:
        (self._thread or self._started()).sync(_held(file), done)

    def call(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._jobs.call(job, done)

    def pending(self) -> int:
        return self._jobs.pending() + (0 if self._thread is None else self._thread.pending())

    def close(self) -> None:
        """Call it on the loop's thread: the completions that are left run inside it."""
        self._closed = True
        if self._thread is not None:
            self._thread.close()
        self._jobs.close()

    def _started(self) -> DiskThread:
        if self._closed:
            raise RuntimeError("the disk queue is closed")
        self._thread = self._thread_type(self._loop, self._name)
        return self._thread


def _held(file: DataFile) -> RealFile:
    if not isinstance(file, RealFile):
        raise TypeError(f"{file.path} is not a file of the real disk")
    return file


class RealDisk:
    """Implements `ports.Disk`."""

    def __init__(self, loop: AbstractEventLoop, *, thread_type: DiskThreadType | None = None) -> None:
        self.files: FileSystem = RealFileSystem()
        self.journal_queue: DiskQueue = RealDiskQueue(loop, "journal", thread_type=thread_type)
        self.segment_queue: DiskQueue = RealDiskQueue(loop, "segment", thread_type=thread_type)
        self.sync_queue: DiskQueue = RealDiskQueue(loop, "sync", thread_type=thread_type)
        self.read_queue: DiskQueue = RealDiskQueue(loop, "read", thread_type=thread_type)

    def close(self) -> None:
        """Finishes what was accepted, on every queue. Blocking; on the loop's thread."""
        for queue in (self.journal_queue, self.segment_queue, self.sync_queue, self.read_queue):
            queue.close()
