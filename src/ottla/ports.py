"""The broker's interfaces to time and disk, as protocols.

The production implementations are in `adapters/`, the simulated ones in `sim/`. Machines and logs never import `time`
or `os`.

Two rules hold for every implementation:

* completions run on the event loop's thread, in the order of their requests on one queue;
* a call that may wait for a disk is documented as blocking. It is made at start-up or through `DiskQueue.call`, never
  on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

ReadOnlyBuffer = bytes | bytearray | memoryview
Completion = Callable[[OSError | None], None]
Allocate = Callable[[int], Any]
"""Returns writable memory of at least the given size, with the buffer protocol; `bytearray` is one."""
T = TypeVar("T")


class Timer(Protocol):
    """A pending call of `Clock.call_later`."""

    def cancel(self) -> None:
        """Prevents the callback from running. Does nothing if it has run already."""
        ...


class Clock(Protocol):
    """Time, and timers on the event loop."""

    def now_ms(self) -> int:
        """Returns the wall-clock time, for record timestamps and retention."""
        ...

    def monotonic_ms(self) -> float:
        """Returns a time that never goes backwards, for deadlines and durations."""
        ...

    def seconds(self) -> float:
        """Returns seconds from an arbitrary start, as cheaply as possible, for measuring how long something took."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Runs the callback on the event loop after the delay, by `monotonic_ms`, and never before."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Runs the callback on the event loop after the current callback: for work gathered over one turn of the
        loop."""
        ...


class DataFile(Protocol):
    """An open file. Every call is blocking except `read_cached`."""

    @property
    def path(self) -> str:
        """The path with which the file was opened. A rename does not change it."""
        ...

    @property
    def alignment(self) -> int:
        """Offsets and lengths of writes must be multiples of this: 1 unless the file is open for direct writes."""
        ...

    def size(self) -> int:
        """Returns the current size in bytes, allocated space beyond the end not included."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Reads up to `length` bytes; fewer only at the end of the file."""
        ...

    def read_cached(self, offset: int, length: int) -> ReadOnlyBuffer | None:
        """Reads like `read_at` if the page cache has all of it, otherwise returns None. Never waits for the disk."""
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
        """Zeroes a range within the file. Unlike `truncate` it frees no space. Like a write, it needs a sync."""
        ...

    def truncate(self, size: int) -> None:
        """Cuts or extends the file to `size` bytes; an extension reads as zeros. Needs a sync to be durable."""
        ...

    def close(self) -> None:
        """Closes the file without syncing it."""
        ...


class SyncAll(Protocol):
    """Syncs everything in a file system, its files and names, instead of one file after another."""

    def finish(self) -> None:
        """Returns once everything that was written since the start is on stable storage. Raises OSError if any of it is
        not, even if the system tried and failed long before this call. Blocking."""
        ...

    def close(self) -> None:
        """Releases the file system. Syncs nothing: without `finish`, nothing is known to be durable."""
        ...


class FileSystem(Protocol):
    """Files and directories by path. Every call is blocking."""

    def open(self, path: str, *, create: bool = False) -> DataFile:
        """Opens a file for reading and writing through the page cache. Without `create`, FileNotFoundError if it is
        missing."""
        ...

    def open_durable(self, path: str) -> DataFile:
        """Opens an existing, fully written file so that each completed write is on stable storage without a separate
        sync.

        It uses O_DIRECT|O_DSYNC if the file system supports them, otherwise a buffered write followed by a sync.
        """
        ...

    def exists(self, path: str) -> bool:
        """Returns whether a file or a directory has this path."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Creates a directory and its missing parents. An existing directory is not an error."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Renames a file or a directory and replaces a target file atomically. Durable after `sync_dir`."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file. Raises FileNotFoundError if it is missing."""
        ...

    def remove_tree(self, path: str) -> None:
        """Removes a directory with everything in it."""
        ...

    def sync_dir(self, path: str) -> None:
        """Makes creations, renames and removals in this directory durable."""
        ...

    def read_file(self, path: str) -> bytes:
        """Returns the whole content of a file. Raises FileNotFoundError if it is missing."""
        ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Replaces a file atomically and durably: temporary file, sync, rename, directory sync."""
        ...

    def begin_sync_all(self, path: str) -> SyncAll | None:
        """Begins a sync of many files at once. None if the system has no such call or would not report a failure; then
        each file and each directory is synced by itself."""
        ...

    def free_bytes(self, path: str) -> int:
        """Returns the free space, in bytes, of the file system that holds this path."""
        ...

    def total_bytes(self, path: str) -> int:
        """Returns the size, in bytes, of the file system that holds this path."""
        ...


class DiskQueue(Protocol):
    """Performs disk work in the background, in order: each write and sync begins when the previous one has ended.
    `write` and `sync` finish without the GIL."""

    def write(self, file: DataFile, offset: int, data: Sequence[ReadOnlyBuffer], done: Completion) -> None:
        """Writes the buffers, which must not change until `done` is called, possibly before this returns. On a direct
        file, the caller pads to the alignment."""
        ...

    def sync(self, file: DataFile, done: Completion) -> None:
        """Syncs the file after the writes queued before, then calls `done` as `write` does."""
        ...

    def call(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Runs a blocking Python job (open, rename, delete...) on a separate thread, after earlier calls.

        Jobs are ordered among one another, but not with `write` and `sync`.
        """
        ...

    def pending(self) -> int:
        """Returns the number of requests that are not completed yet."""
        ...

    def close(self) -> None:
        """Completes the accepted requests, then ends the threads. Blocking."""
        ...


class Disk(Protocol):
    """The disk of a data directory: its files, and a separate queue for each kind of work, so that a bulk write or a
    long sync never delays the journal, and a slow removal never delays a reader."""

    files: FileSystem
    journal_queue: DiskQueue
    """Stops at its first failed write: the writes behind it fail too, and none of them reaches the disk."""
    segment_queue: DiskQueue
    sync_queue: DiskQueue
    """Segment syncs, checkpoints, removals."""
    read_queue: DiskQueue
    """Reads that miss the page cache."""
    compaction_queue: DiskQueue
    """Slices of compactions, on a queue of their own so that nothing else waits behind them."""
    catalog_queue: DiskQueue
    """The catalog of topics: creating a topic never waits for a long flush."""
