"""What the broker needs of the world: time and disk, as protocols.

The real ones are in `adapters/`, the simulated ones in `sim/`. Machines and logs never import `time` or `os`.

Two rules hold for every implementation:

* completions run on the event loop's thread, in the order of their requests on one queue;
* a call that may wait for a disk is named blocking, and is made at start-up or through `DiskQueue.call`, never on
  the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

ReadOnlyBuffer = bytes | bytearray | memoryview
Completion = Callable[[OSError | None], None]
Allocate = Callable[[int], Any]
"""From a size to writable memory of at least that size, with the buffer protocol; `bytearray` is one."""
T = TypeVar("T")


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time: for record timestamps and retention."""
        ...

    def monotonic_ms(self) -> float:
        """For deadlines and durations; never goes back."""
        ...

    def seconds(self) -> float:
        """From anywhere on: for measurements of how long something took, and as cheap as they can be."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Runs the callback on the event loop after the delay, by `monotonic_ms`: never before."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Runs the callback on the event loop after what runs now: for work gathered over one turn of the loop."""
        ...


class DataFile(Protocol):
    """An open file. Every call is blocking except `read_cached`."""

    @property
    def path(self) -> str: ...

    @property
    def alignment(self) -> int:
        """Offsets and lengths of writes must be multiples of this: 1 unless the file is open for direct writes."""
        ...

    def size(self) -> int: ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def read_cached(self, offset: int, length: int) -> ReadOnlyBuffer | None:
        """The same if the page cache has all of it, else None. Never waits for the disk."""
        ...

    def write_at(self, offset: int, data: Sequence[ReadOnlyBuffer]) -> None:
        """Writes all of the buffers one after another. A short write is a failure (OSError)."""
        ...

    def sync(self) -> None:
        """Returns once the data and the size are on stable storage. After a failure the file must be abandoned."""
        ...

    def allocate(self, offset: int, length: int) -> None:
        """Reserves space, so that later writes there cannot fail with ENOSPC. Does not change what is read."""
        ...

    def clear(self, offset: int, length: int) -> None:
        """Zeros from there on, within the file; unlike `truncate` it gives no space back. To be synced as a write."""
        ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class SyncAll(Protocol):
    """Everything in a file system, its files and names, instead of one after another."""

    def finish(self) -> None:
        """Returns once all that was written since the beginning is on stable storage. OSError if any of it is not, even
        if the system had tried and failed long before this call. Blocking."""
        ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """Files and directories by path. Every call is blocking."""

    def open(self, path: str, *, create: bool = False) -> DataFile:
        """Opens for reading and writing through the page cache. Without `create`, FileNotFoundError if missing."""
        ...

    def open_durable(self, path: str) -> DataFile:
        """Opens an existing, fully written file so that each completed write is on stable storage by itself.

        O_DIRECT|O_DSYNC where the file system takes it; else a buffered write followed by a sync.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_dirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Makes creations, renames and removals in this directory durable."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Atomically and durably: a temporary file, its sync, the rename, the directory's sync."""
        ...

    def begin_sync_all(self, path: str) -> SyncAll | None:
        """For many files at once. None where the system has no such call, or would not tell of a failure: then each
        file and each directory is synced by itself."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...


class DiskQueue(Protocol):
    """Disk work in the background, in order: each write and sync begins when the one before it has ended. `write` and
    `sync` finish without the interpreter's lock."""

    def write(self, file: DataFile, offset: int, data: Sequence[ReadOnlyBuffer], done: Completion) -> None:
        """The buffers stay untouched until `done`, which may come before this returns. On a direct file, padding to
        the alignment is the caller's."""
        ...

    def sync(self, file: DataFile, done: Completion) -> None: ...

    def call(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Runs a blocking Python job (open, rename, delete...) on a thread of its own, after earlier calls.

        Jobs are ordered among one another, not with `write` and `sync`.
        """
        ...

    def pending(self) -> int:
        """Requests not completed yet."""
        ...

    def close(self) -> None:
        """Finishes what was accepted, then ends the threads. Blocking."""
        ...


class Disk(Protocol):
    """A data directory's disk: its files, and queues of its own for each kind of work, so that a bulk write or a
    long sync never delays the journal, and a slow removal never delays a reader."""

    files: FileSystem
    journal_queue: DiskQueue
    """Ends with its first write that fails: those behind it fail too, and nothing of them reaches the disk."""
    segment_queue: DiskQueue
    sync_queue: DiskQueue
    """Segment syncs, checkpoints, removals."""
    read_queue: DiskQueue
    """Reads that miss the page cache."""
    compaction_queue: DiskQueue
    """Slices of compactions: nobody else waits behind one."""
    catalog_queue: DiskQueue
    """The catalog of topics: nobody who creates one waits for a long flush."""
