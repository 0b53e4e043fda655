"""The real disk: files of the operating system, and queues with their own threads."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol, TypeVar

from ottla.broker.adapters._disk_py import DiskThread as DiskThreadInPython
from ottla.broker.adapters._disk_py import HeldFile
from ottla.broker.adapters.files import RealFile, RealFileSystem
from ottla.broker.adapters.jobs import JobThread
from ottla.ports import Completion, DataFile, DiskQueue, FileSystem, ReadOnlyBuffer

T = TypeVar("T")

INLINE_BYTES_MAX = 4 * 1024 * 1024
SLOW_WRITE_S = 0.005
SLOW_PERIOD_S = 1.0
SLOW_PERIOD_S_MAX = 60.0


class DiskThread(Protocol):
    """The interface of the disk threads in `_disk.pyx` and `_disk_py.py`."""

    def write(self, file: HeldFile, offset: int, data: Sequence[ReadOnlyBuffer], done: Completion) -> None:
        """Queues a write. `done` runs on the event loop, with the error if it failed."""
        ...

    def sync(self, file: HeldFile, done: Completion) -> None:
        """Queues a sync, performed after the writes queued before it."""
        ...

    def pending(self) -> int:
        """Returns the number of requests whose `done` has not been called yet."""
        ...

    def finished_count(self) -> int:
        """Returns the number of requests performed since the start, delivered or not."""
        ...

    def close(self) -> None:
        """Performs the queued requests, delivers their completions and ends the thread. Blocking."""
        ...


class DiskThreadType(Protocol):
    """Starts a disk thread. With `ends_with_failure`, every write after a failed one fails too."""

    def __call__(self, loop: AbstractEventLoop, name: str, ends_with_failure: bool = False) -> DiskThread: ...


def best_disk_thread() -> DiskThreadType:
    """Returns the disk thread that does not need the GIL if it was built, otherwise the Python one."""
    try:
        from ottla.broker.adapters._disk import DiskThread as NativeDiskThread
    except ImportError:
        return DiskThreadInPython
    return NativeDiskThread


class InlineWrites:
    """Decides whether a write goes into the page cache directly instead of through a thread.

    The thread costs two wake-ups, which is many times the cost of a small write, and a large write then copies from
    another core's cache. But a write into the page cache can block on the disk when too many pages are dirty. A slow
    write therefore sends the following ones to the thread for a second, and for twice as long each time the next
    attempt is slow too. Time during which the thread was preempted does not count as slow: otherwise, a busy machine
    would send every write through the thread.
    """

    __slots__ = ("_period_s", "_until_s")

    def __init__(self) -> None:
        self._until_s = 0.0
        self._period_s = SLOW_PERIOD_S

    def wants(self, data: Sequence[ReadOnlyBuffer]) -> bool:
        """Returns whether to write on the event loop: at most 4 MiB, and no recent write was slow."""
        return sum(map(len, data)) <= INLINE_BYTES_MAX and monotonic() >= self._until_s

    def write(self, file: RealFile, offset: int, data: Sequence[ReadOnlyBuffer]) -> OSError | None:
        """Writes at once and returns the error, if any. A slow write postpones the next inline writes."""
        try:
            waited_s = file.write_and_time(offset, data)
        except OSError as error:
            return error
        if waited_s > SLOW_WRITE_S:
            now_s = monotonic()
            soon_again = now_s - self._until_s < self._period_s
            self._period_s = min(2 * self._period_s, SLOW_PERIOD_S_MAX) if soon_again else SLOW_PERIOD_S
            self._until_s = now_s + self._period_s
        return None


class RealDiskQueue:
    """Implements `ports.DiskQueue`. Used only from the event loop's thread. A thread starts with its first work.

    With `ends_with_failure`, no write is performed after one has failed.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        name: str,
        *,
        thread_type: DiskThreadType | None = None,
        inline: InlineWrites | None = None,
        ends_with_failure: bool = False,
    ) -> None:
        self._inline = inline
        self._ends_with_failure = ends_with_failure
        self._loop = loop
        self._name = f"ottla-{name}"
        self._thread_type = thread_type or best_disk_thread()
        self._thread: DiskThread | None = None
        self._jobs = JobThread(loop, f"ottla-{name}-jobs")
        self._closed = False

    def write(self, file: DataFile, offset: int, data: Sequence[ReadOnlyBuffer], done: Completion) -> None:
        held = _held(file)
        thread = self._thread
        if self._inline is not None and (thread is None or not thread.pending()) and self._inline.wants(data):
            done(self._inline.write(held, offset, data))
            return
        (thread or self._started()).write(held, offset, data, done)

    def sync(self, file: DataFile, done: Completion) -> None:
        (self._thread or self._started()).sync(_held(file), done)

    def call(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        self._jobs.call(job, done)

    def pending(self) -> int:
        return self._jobs.pending() + (0 if self._thread is None else self._thread.pending())

    def close(self) -> None:
        """Closes the queue. Must be called on the loop's thread, where the remaining completions run."""
        self._closed = True
        if self._thread is not None:
            self._thread.close()
        self._jobs.close()

    def _started(self) -> DiskThread:
        if self._closed:
            raise RuntimeError("the disk queue is closed")
        self._thread = self._thread_type(self._loop, self._name, self._ends_with_failure)
        return self._thread


def _held(file: DataFile) -> RealFile:
    if not isinstance(file, RealFile):
        raise TypeError(f"{file.path} is not a file of the real disk")
    return file


class RealDisk:
    """Implements `ports.Disk`."""

    def __init__(self, loop: AbstractEventLoop, *, thread_type: DiskThreadType | None = None) -> None:
        self.files: FileSystem = RealFileSystem()
        self.journal_queue: DiskQueue = RealDiskQueue(loop, "journal", thread_type=thread_type, ends_with_failure=True)
        self.segment_queue: DiskQueue = RealDiskQueue(loop, "segment", thread_type=thread_type, inline=InlineWrites())
        self.sync_queue: DiskQueue = RealDiskQueue(loop, "sync", thread_type=thread_type)
        self.read_queue: DiskQueue = RealDiskQueue(loop, "read", thread_type=thread_type)
        self.compaction_queue: DiskQueue = RealDiskQueue(loop, "compact", thread_type=thread_type)
        self.catalog_queue: DiskQueue = RealDiskQueue(loop, "catalog", thread_type=thread_type)

    def close(self) -> None:
        """Completes the accepted requests of every queue. Blocking; on the loop's thread."""
        for queue in (
            self.journal_queue,
            self.segment_queue,
            self.sync_queue,
            self.read_queue,
            self.compaction_queue,
            self.catalog_queue,
        ):
            queue.close()
