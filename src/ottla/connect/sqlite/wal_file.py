"""Reads committed transactions from the -wal file: where they end, and the pages that they wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ottla.connect.sqlite.wal_format import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    UNCHECKED,
    DamagedWalError,
    Frame,
    WalHeader,
    WalPosition,
    frame_position,
    parse_frames,
    parse_header,
)
from ottla.connect.sqlite.wal_index import WalState

_SLICE_BYTES = 4 << 20


class Bytes(Protocol):
    """Something to read frames from: the file, or a copy of a part of it."""

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes at this position of the WAL file; fewer at its end."""
        ...


class WalFile:
    """The -wal file of a database."""

    def __init__(self, database: Path) -> None:
        self._file = os.open(f"{database}-wal", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def descriptor(self) -> int:
        """The file descriptor, open until `close`."""
        return self._file

    def pread(self, size: int, position: int) -> bytes:
        """Reads up to `size` bytes of the file, whatever they are now: SQLite may be overwriting them."""
        return os.pread(self._file, size, position)

    def close(self) -> None:
        """Closes the file. Close SQLite's own connections first; `wal_index` says why."""
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class WalCopy:
    """A part of a WAL, with its header, copied to memory because the file may be overwritten."""

    header: bytes
    start: int
    content: bytes

    def pread(self, size: int, position: int) -> bytes:
        """Reads from the header or the copied part; the position is that in the file."""
        if position < HEADER_BYTES:
            return self.header[position : position + size]
        return self.content[position - self.start : position - self.start + size]


@dataclass(slots=True)
class WalTransaction:
    """What one commit wrote. Pages are read from the WAL on demand, because there may be gigabytes of them."""

    end: WalPosition
    database_pages: int
    frames: dict[int, int] = field(default_factory=dict)
    """The last frame of each page."""

    def pages(self, wal: Bytes, page_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yields the pages, in the order of their numbers, that are within the database after the commit."""
        for number in sorted(self.frames):
            if number <= self.database_pages:
                yield number, read_page(wal, self.frames[number], page_bytes)


def read_page(wal: Bytes, frame: int, page_bytes: int) -> bytes:
    """Reads the page of a frame. Raises DamagedWalError if the file is too short."""
    page = wal.pread(page_bytes, frame_position(frame, page_bytes) + FRAME_HEADER_BYTES)
    if len(page) != page_bytes:
        raise DamagedWalError(f"it ends within frame {frame + 1}")
    return page


def read_header(wal: Bytes, state: WalState) -> WalHeader:
    """Reads the header. Raises DamagedWalError if it does not match the wal-index."""
    header = parse_header(wal.pread(HEADER_BYTES, 0))
    if header.salts != state.salts or header.page_bytes != state.page_bytes:
        raise DamagedWalError("its header differs from the one in the -shm file")
    return header


def beginning(header: WalHeader) -> WalPosition:
    """Returns the position before the first frame."""
    return WalPosition(header.salts, 0, header.checksum)


def read_transactions(wal: Bytes, start: WalPosition | None, state: WalState) -> Iterator[WalTransaction]:
    """Yields the transactions from `start` (None: the first frame) up to `state`, verified with the WAL's own
    checksums."""
    if state.frames == (0 if start is None else start.frame):
        return
    header = read_header(wal, state)
    frames: dict[int, int] = {}
    place = beginning(header) if start is None or start.frame == 0 else start
    for frame in _read_frames(wal, header, place, state.frames):
        place = frame.end
        frames[frame.page_number] = place.frame - 1
        if frame.database_pages:
            yield WalTransaction(place, frame.database_pages, frames)
            frames = {}
    if frames or place.checksum not in (state.checksum, UNCHECKED):
        raise DamagedWalError(f"frame {place.frame} differs from the committed one")


def _read_frames(wal: Bytes, header: WalHeader, start: WalPosition, until: int) -> Iterator[Frame]:
    frame_bytes = FRAME_HEADER_BYTES + header.page_bytes
    count_max = max(1, _SLICE_BYTES // frame_bytes)
    place = start
    while place.frame < until:
        count = min(count_max, until - place.frame)
        data = wal.pread(count * frame_bytes, frame_position(place.frame, header.page_bytes))
        if len(data) < count * frame_bytes:
            raise DamagedWalError(f"it ends before frame {place.frame + count}, which was committed")
        for frame in parse_frames(header, place, data):
            yield frame
            place = frame.end


def continues(wal: Bytes, place: WalPosition, state: WalState) -> bool:
    """Returns whether the WAL still has everything before `place`, and therefore everything after it."""
    if place.salts != state.salts or place.frame > state.frames:
        return False
    if place.frame == 0:
        return state.frames == 0 or parse_header(wal.pread(HEADER_BYTES, 0)).salts == place.salts
    data = wal.pread(FRAME_HEADER_BYTES, frame_position(place.frame - 1, state.page_bytes))
    words = [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4)]
    return len(words) == 6 and (words[2], words[3]) == place.salts and (words[4], words[5]) == place.checksum


def copy_of(wal: Bytes, start: WalPosition, state: WalState) -> WalCopy:
    """Copies the frames between `start` and `state`."""
    first = frame_position(start.frame, state.page_bytes)
    size = frame_position(state.frames, state.page_bytes) - first
    return WalCopy(wal.pread(HEADER_BYTES, 0), first, wal.pread(size, first))
