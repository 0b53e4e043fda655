"""The content of one simulated file: what a reader sees, what is on stable storage, and the changes between the two.

A power failure keeps, for each sector, any of the versions that it had since the last sync, because the kernel writes
pages back at any time and in any order. The same holds for the file size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

SECTOR_BYTES = 512
BLOCK_BYTES = 4096
"""The unit in which space is allocated to a file."""


@dataclass(frozen=True, slots=True)
class Change:
    """A write, or a truncation (`data` is None) to `size_after`, that no sync has covered yet."""

    offset: int
    data: bytes | None
    size_before: int
    size_after: int

    def apply_to(self, image: bytearray) -> None:
        """Applies the change to a copy of the file's content. Gaps are filled with zeros."""
        if self.data is not None:
            _grow(image, self.offset)
            image[self.offset : self.offset + len(self.data)] = self.data
        elif self.size_after < len(image):
            del image[self.size_after :]
        _grow(image, self.size_after)

    def touched(self) -> tuple[int, int]:
        """Returns the range of bytes that this change sets."""
        if self.data is not None:
            return self.offset, self.offset + len(self.data)
        return self.size_after, max(self.size_before, self.size_after)

    def bytes_between(self, start: int, stop: int) -> bytes:
        """Returns the bytes that this change sets between two offsets, which must be in the range of `touched`. They
        are zeros for a truncation."""
        if self.data is None:
            return bytes(stop - start)
        return self.data[start - self.offset : stop - self.offset]


class FileContent:
    """An inode: several names and handles may refer to it."""

    def __init__(self, durable: bytes | bytearray = b"") -> None:
        self.current = bytearray(durable)
        self.durable = bytearray(durable)
        self.unsynced: list[Change] = []
        self.blocks: set[int] = _blocks_of(durable)
        self.durable_blocks: set[int] = set(self.blocks)
        """Blocks whose allocation was synced; they stay allocated to the file after a power failure."""
        self.linked = True
        self.handles = 0

    def write(self, offset: int, data: bytes) -> None:
        """Writes into the page cache."""
        if not data:
            return
        size = len(self.current)
        change = Change(offset, data, size, max(size, offset + len(data)))
        change.apply_to(self.current)
        self.unsynced.append(change)

    def write_lost_later(self, offset: int, data: bytes) -> None:
        """Writes only into the page cache: the device will report success without storing the data."""
        Change(offset, data, 0, 0).apply_to(self.current)

    def write_through(self, offset: int, data: bytes) -> None:
        """Writes to stable storage at once, as a direct write does. Other unsynced changes of the file stay
        unsynced."""
        if not data:
            return
        stop = offset + len(data)
        if any(change.data is None for change in self.unsynced):
            self.sync()  # a direct write flushes the range first; with truncations in between, flush everything
        self.unsynced = [part for change in self.unsynced for part in _outside(change, offset, stop)]
        Change(offset, data, 0, 0).apply_to(self.current)
        Change(offset, data, 0, 0).apply_to(self.durable)

    def truncate(self, size: int) -> None:
        """Truncates the file, or extends it with zeros, in the page cache."""
        change = Change(size, None, len(self.current), size)
        change.apply_to(self.current)
        self.unsynced.append(change)

    def sync(self) -> None:
        """Makes all changes and block allocations durable."""
        for change in self.unsynced:
            change.apply_to(self.durable)
        self.unsynced.clear()
        self.durable_blocks = set(self.blocks)

    def sync_and_fail(self, rng: Random) -> None:
        """Fails a sync: the kernel reports EIO once and marks the pages clean, so data that was not written never will
        be."""
        self.durable = self._surviving_image(rng)
        self.unsynced.clear()

    def lose_power(self, rng: Random | None) -> None:
        """Leaves what a machine finds after a power failure. Without `rng`, no unsynced data survives."""
        if rng is not None:
            self.durable = self._surviving_image(rng)
        self.current = bytearray(self.durable)
        self.unsynced.clear()
        self.blocks = self.durable_blocks | _blocks_of(self.durable)

    def copy(self) -> FileContent:
        """Returns an independent copy that no handle refers to."""
        twin = FileContent()
        twin.current = bytearray(self.current)
        twin.durable = bytearray(self.durable)
        twin.unsynced = list(self.unsynced)
        twin.blocks = set(self.blocks)
        twin.durable_blocks = set(self.durable_blocks)
        twin.linked = self.linked
        return twin

    def _surviving_image(self, rng: Random) -> bytearray:
        image = bytearray(self.durable)
        if not self.unsynced:
            return image
        _grow(image, max(max(change.size_before, change.size_after) for change in self.unsynced))
        versions = _VersionOfPages(rng, len(self.unsynced))
        for number, change in enumerate(self.unsynced):
            for start, stop in versions.pages(*change.touched()):
                if versions.chosen(start) > number:
                    image[start:stop] = change.bytes_between(start, stop)
        sizes = [len(self.durable), *(change.size_after for change in self.unsynced)]
        size = sizes[versions.draw()]
        del image[size:]
        _grow(image, size)
        return image


class _VersionOfPages:
    """Draws, for each page, how many of the unsynced changes had reached it."""

    def __init__(self, rng: Random, change_count: int) -> None:
        self._rng = rng
        self._change_count = change_count
        self._page_bytes = rng.choice((SECTOR_BYTES, BLOCK_BYTES))
        self._share_old = rng.random()
        self._share_new = (1 - self._share_old) * rng.random()
        self._versions: dict[int, int] = {}

    def draw(self) -> int:
        point = self._rng.random()
        if point < self._share_old:
            return 0
        if point < self._share_old + self._share_new:
            return self._change_count
        return self._rng.randint(0, self._change_count)

    def chosen(self, offset: int) -> int:
        page = offset // self._page_bytes
        if page not in self._versions:
            self._versions[page] = self.draw()
        return self._versions[page]

    def pages(self, start: int, stop: int) -> list[tuple[int, int]]:
        edges = [start, *range((start // self._page_bytes + 1) * self._page_bytes, stop, self._page_bytes), stop]
        return [(low, high) for low, high in pairwise(edges) if low < high]


def torn(data: bytes, offset: int, rng: Random) -> list[tuple[int, bytes]]:
    """Returns the parts of a write that were on the device when it was interrupted: a prefix, or sectors in
    any order."""
    first_edge = (offset // SECTOR_BYTES + 1) * SECTOR_BYTES - offset
    edges = [0, *range(first_edge, len(data), SECTOR_BYTES), len(data)]
    sectors = [(low, high) for low, high in pairwise(edges) if low < high]
    if rng.random() < 0.5:
        kept = sectors[: rng.randint(0, len(sectors))]
    else:
        share = rng.random()
        kept = [sector for sector in sectors if rng.random() < share]
    return [(offset + low, data[low:high]) for low, high in kept]


def _outside(change: Change, start: int, stop: int) -> list[Change]:
    """Returns what is left of an unsynced write after a direct write has replaced the bytes from start to stop."""
    low, high = change.touched()
    assert change.data is not None
    size_after = max(change.size_after, stop)
    if high <= start or stop <= low:
        return [replace(change, size_after=size_after)]
    parts = []
    if low < start:
        parts.append(Change(low, change.data[: start - low], change.size_before, size_after))
    if stop < high:
        parts.append(Change(stop, change.data[stop - low :], change.size_before, size_after))
    return parts


def _blocks_of(image: bytes | bytearray) -> set[int]:
    return set(range((len(image) + BLOCK_BYTES - 1) // BLOCK_BYTES))


def _grow(image: bytearray, size: int) -> None:
    if len(image) < size:
        image.extend(bytes(size - len(image)))
