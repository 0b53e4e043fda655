"""The contents of one file on a volatile disk: a real file, overlaid by the pages that no sync has covered."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from random import Random

from ottla.broker.adapters._disk_py import sync_descriptor, write_all
from ottla.broker.adapters.kernel import allocate_keeping_size

PAGE_BYTES = 4096


class VolatileContent:
    """The contents of a file, shared by all of its handles. The contents of `_pages` are lost when this process
    ends."""

    def __init__(self, path: str, *, create: bool, writeback_share: float, rng: Random) -> None:
        self._lock = threading.RLock()
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o640)
        self._size = self._real_size = os.fstat(self._fd).st_size
        self._pages: dict[int, bytearray] = {}
        self._dirty: set[int] = set()
        self._writeback_share = writeback_share
        self._rng = rng

    def __del__(self) -> None:
        os.close(self._fd)

    def size(self) -> int:
        """Returns the size that readers see, including unsynced writes."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """Reads up to `length` bytes, unsynced pages included; fewer only at the end of the file."""
        with self._lock:
            length = max(min(length, self._size - offset), 0)
            data = bytearray(length)
            real_length = max(min(length, self._real_size - offset), 0)
            real = os.pread(self._fd, real_length, offset)
            data[: len(real)] = real
            for page, start, stop in _pages_of(offset, offset + length):
                if page in self._pages:
                    at = page * PAGE_BYTES
                    data[start - offset : stop - offset] = self._pages[page][start - at : stop - at]
            return bytes(data)

    def write(self, offset: int, data: bytes) -> None:
        """Writes to the volatile pages. A random share of them goes to the real file, as writeback would do."""
        with self._lock:
            self._size = max(self._size, offset + len(data))
            for page, start, stop in _pages_of(offset, offset + len(data)):
                at = page * PAGE_BYTES
                self._page(page)[start - at : stop - at] = data[start - offset : stop - offset]
                self._dirty.add(page)
                if self._rng.random() < self._writeback_share:
                    self._write_back(page)

    def write_through(self, offset: int, data: bytes) -> None:
        """Writes to stable storage at once; unsynced neighbouring pages stay unsynced."""
        with self._lock:
            stop = offset + len(data)
            if self._real_size < stop:
                os.ftruncate(self._fd, self._real_size)  # truncated data must not reappear in between
            write_all(self._fd, offset, [memoryview(data)])
            self._real_size = max(self._real_size, stop)
            self._size = max(self._size, stop)
            for page, start, end in _pages_of(offset, stop):
                if page in self._pages:
                    at = page * PAGE_BYTES
                    self._pages[page][start - at : end - at] = data[start - offset : end - offset]
        sync_descriptor(self._fd)

    def truncate(self, size: int) -> None:
        """Changes the size that readers see; the real file keeps its size until a sync."""
        with self._lock:
            if size % PAGE_BYTES and size < self._size:
                page = size // PAGE_BYTES
                self._page(page)[size % PAGE_BYTES :] = bytes(PAGE_BYTES - size % PAGE_BYTES)
                self._dirty.add(page)
            for page in [page for page in self._pages if page * PAGE_BYTES >= size]:
                del self._pages[page]
                self._dirty.discard(page)
            self._real_size = min(self._real_size, size)
            self._size = size

    def sync(self) -> None:
        """Writes the pages to the real file in random order, so that a kill during the sync leaves only some of
        them."""
        with self._lock:
            if os.fstat(self._fd).st_size > self._real_size:
                os.ftruncate(self._fd, self._real_size)
            pages = list(self._dirty)
            self._rng.shuffle(pages)
            for page in pages:
                self._write_back(page)
                del self._pages[page]
            self._dirty.clear()
            os.ftruncate(self._fd, self._size)
            self._real_size = self._size
        sync_descriptor(self._fd)

    def sync_and_fail(self) -> None:
        """Fails a sync the way the kernel does: EIO once, after which the pages count as clean and no later sync writes
        them."""
        with self._lock:
            self._dirty.clear()

    def allocate(self, offset: int, length: int) -> None:
        """Reserves real disk space at once, without changing the size."""
        allocate_keeping_size(self._fd, offset, length)

    def _page(self, page: int) -> bytearray:
        found = self._pages.get(page)
        if found is None:
            at = page * PAGE_BYTES
            real = os.pread(self._fd, max(min(PAGE_BYTES, self._real_size - at), 0), at)
            found = self._pages[page] = bytearray(real.ljust(PAGE_BYTES, b"\0"))
        return found

    def _write_back(self, page: int) -> None:
        at = page * PAGE_BYTES
        write_all(self._fd, at, [memoryview(self._pages[page])[: max(min(PAGE_BYTES, self._size - at), 0)]])


def _pages_of(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yields each page of a range, with the part of the range that lies in it."""
    while start < stop:
        page = start // PAGE_BYTES
        end = min((page + 1) * PAGE_BYTES, stop)
        yield page, start, end
        start = end


def os_error(number: int, path: str) -> OSError:
    """Returns an OSError with the system's message for this errno."""
    return OSError(number, os.strerror(number), path)


def named_error(name: str, path: str) -> OSError:
    """Returns the error named in a fault plan: EIO, ENOSPC, ..."""
    return os_error(getattr(errno, name), path)
