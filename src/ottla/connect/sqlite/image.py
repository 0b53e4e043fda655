"""All pages of a database at one point in time, read from the database file and its WAL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ottla.connect.sqlite.page_hashes import PageHashes
from ottla.connect.sqlite.wal_file import Bytes, read_page, read_transactions
from ottla.connect.sqlite.wal_format import WalPosition
from ottla.connect.sqlite.wal_index import WalState

_SLICE_PAGES = 256


@dataclass(frozen=True, slots=True)
class Image:
    """A consistent view of a database."""

    file: int
    wal: Bytes
    in_wal: dict[int, int]
    """The frame of each page whose latest version is in the WAL."""
    page_bytes: int
    database_pages: int
    place: WalPosition

    @classmethod
    def of(cls, file: int, wal: Bytes, state: WalState) -> Image:
        """Creates the image for a state of the WAL.

        If the WAL is fully checkpointed, only the database file is used, because a writer may restart the WAL at any
        time.
        """
        in_wal: dict[int, int] = {}
        if not state.is_used_up:
            for transaction in read_transactions(wal, None, state):
                in_wal.update(transaction.frames)
        page_bytes, database_pages = state.page_bytes, state.database_pages
        if state.frames == 0:  # the wal-index has no sizes then
            page_bytes, database_pages = _size_in_file(file)
        place = WalPosition(state.salts, state.frames, state.checksum)
        return cls(file, wal, in_wal, page_bytes, database_pages, place)

    def pages(self) -> Iterator[tuple[int, bytes]]:
        """Yields the number and the content of each page."""
        for first in range(1, self.database_pages + 1, _SLICE_PAGES):
            count = min(_SLICE_PAGES, self.database_pages + 1 - first)
            slice_bytes = os.pread(self.file, count * self.page_bytes, (first - 1) * self.page_bytes)
            slice_bytes = slice_bytes.ljust(count * self.page_bytes, b"\x00")  # pages that are only in the WAL so far
            for i in range(count):
                number = first + i
                if number in self.in_wal:
                    yield number, read_page(self.wal, self.in_wal[number], self.page_bytes)
                else:
                    yield number, slice_bytes[i * self.page_bytes : (i + 1) * self.page_bytes]

    def hashes(self) -> PageHashes:
        """Returns the hashes of all pages."""
        hashes = PageHashes()
        hashes.resize(self.database_pages)
        for number, page in self.pages():
            hashes.put(number, page)
        return hashes


def _size_in_file(file: int) -> tuple[int, int]:
    header = os.pread(file, 100, 0)
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    return page_bytes, os.fstat(file).st_size // page_bytes
