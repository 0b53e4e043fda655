"""The pure Python version of `_disk.pyx`, with the same behaviour, for systems without the compiled extension.

It needs the GIL after each system call, so it is slow next to a busy Python thread.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import monotonic
from typing import Protocol

from ottla.broker.adapters.delivery import LoopDelivery
from ottla.ports import Completion, ReadOnlyBuffer

BUFFERS_PER_CALL_MAX = 1024
BOUNCE_BYTES_STEP = 1 << 18


class HeldFile(Protocol):
    """An open file whose descriptor stays open from `hold` to `release`, even if it is closed in between."""

    @property
    def path(self) -> str: ...

    @property
    def alignment(self) -> int: ...

    @property
    def syncs_after_write(self) -> bool: ...

    def hold(self) -> int: ...

    def release(self) -> None: ...


class DiskThread:
    """A thread that performs writes and syncs in order; see `ports.DiskQueue`."""

    def __init__(self, loop: AbstractEventLoop, name: str, ends_with_failure: bool = False) -> None:
        self._delivery = LoopDelivery(loop)
        self._ends_with_failure = ends_with_failure
        self._failure: OSError | None = None
        """Used only by the thread."""
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._bounce = mmap.mmap(-1, BOUNCE_BYTES_STEP)
        self._pending = 0
        self._finished_count = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def write(self, file: HeldFile, offset: int, data: Sequence[ReadOnlyBuffer], done: Completion) -> None:
        views = [memoryview(part).cast("B") for part in data]
        self._accept(file, lambda fd: self._write(file, fd, offset, views), views, done)

    def sync(self, file: HeldFile, done: Completion) -> None:
        self._accept(file, sync_descriptor, [], done)

    def pending(self) -> int:
        return self._pending

    def finished_count(self) -> int:
        return self._finished_count

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._work.put(None)
        self._thread.join()
        self._delivery.drain()

    def _accept(
        self, file: HeldFile, perform: Callable[[int], None], views: list[memoryview], done: Completion
    ) -> None:
        if self._closed:
            raise RuntimeError("the disk queue is closed")
        fd = file.hold()
        self._pending += 1

        def deliver(error: OSError | None) -> None:
            self._pending -= 1
            for view in views:
                view.release()
            file.release()
            done(error)

        self._work.put(lambda: self._perform(file.path, fd, perform, deliver))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _perform(self, path: str, fd: int, perform: Callable[[int], None], deliver: Completion) -> None:
        error: OSError | None = None
        try:
            perform(fd)
        except OSError as failure:
            error = OSError(failure.errno, failure.strerror, path)
        except Exception as bug:  # the thread must continue, and every request must be answered
            error = OSError(errno.EIO, repr(bug), path)
        self._finished_count += 1
        self._delivery.post(lambda: deliver(error))

    def _write(self, file: HeldFile, fd: int, offset: int, views: list[memoryview]) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            self._write_all(file, fd, offset, views)
        except OSError as error:
            if self._ends_with_failure:
                self._failure = error
            raise

    def _write_all(self, file: HeldFile, fd: int, offset: int, views: list[memoryview]) -> None:
        alignment = file.alignment
        if offset % alignment or sum(map(len, views)) % alignment:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if alignment == 1 or file.syncs_after_write:
            write_all(fd, offset, views)
        else:
            write_all(fd, offset, [self._bounced(views)])
        if file.syncs_after_write:
            sync_descriptor(fd)

    def _bounced(self, views: list[memoryview]) -> memoryview:
        """Copies the buffers into aligned memory, for a direct write."""
        total = sum(map(len, views))
        if total > len(self._bounce):
            self._bounce = mmap.mmap(-1, -(-total // BOUNCE_BYTES_STEP) * BOUNCE_BYTES_STEP)
        at = 0
        for view in views:
            self._bounce[at : at + len(view)] = view
            at += len(view)
        return memoryview(self._bounce)[:total]


def write_all(fd: int, offset: int, data: Sequence[ReadOnlyBuffer]) -> float:
    """Writes all of the bytes or raises. Blocking. Returns how many seconds it waited: 0 if it only copied, however
    long it was preempted."""
    waits, began_s = _waits_of_thread(), monotonic()
    _write_all(fd, offset, data)
    return 0.0 if waits >= 0 and waits == _waits_of_thread() else monotonic() - began_s


def _waits_of_thread() -> int:
    """Returns how often this thread gave up the processor to wait; -1 if the system does not count that."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if hasattr(resource, "RUSAGE_THREAD") else -1


def _write_all(fd: int, offset: int, data: Sequence[ReadOnlyBuffer]) -> None:
    left = [view for part in data if len(view := memoryview(part).cast("B"))]
    while left:
        written = os.pwritev(fd, left[:BUFFERS_PER_CALL_MAX], offset)
        if written == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        offset += written
        used = 0
        while used < len(left) and written >= len(left[used]):
            written -= len(left[used])
            used += 1
        del left[:used]
        if written:
            left[0] = left[0][written:]


def sync_descriptor(fd: int) -> None:
    """Syncs data and size to stable storage. Blocking. On macOS, fsync would stop at the drive's volatile cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def read_nowait(fd: int, offset: int, target: memoryview) -> int | None:
    """Reads the cached part of a range, from its start, into memory of the range's size. Returns the number of bytes;
    None if nothing is cached."""
    if not hasattr(os, "RWF_NOWAIT"):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    try:
        return os.preadv(fd, [target], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
