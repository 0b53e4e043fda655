"""A checksum of a whole database that can be updated page by page.

It is the sum of the hashes of each page and its number. So it can be computed from the previous sum and the pages that
a transaction wrote, or from the whole file; if the two agree, the file is a correct copy. A page of zeros adds nothing,
like a page that was never written, because both read the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b

Pages = Iterator[tuple[int, bytes]]
"""Page numbers, from 1, and contents."""
_MODULUS = 1 << 64
_ZEROS = bytes(65536)


def page_hash(number: int, page: bytes) -> int:
    """Returns the hash of a page and its number; 0 for a page of zeros."""
    if page == _ZEROS[: len(page)]:
        return 0
    return int.from_bytes(blake2b(page, digest_size=8, salt=number.to_bytes(8, "little")).digest(), "little")


class PageHashes:
    """The hash of each page, and their sum."""

    def __init__(self) -> None:
        self._hashes = array("Q")
        self.total = 0

    def __len__(self) -> int:
        return len(self._hashes)

    def put(self, number: int, page: bytes) -> None:
        """Replaces the hash of a page. Pages are numbered from 1."""
        hashes = self._hashes
        if number > len(hashes):
            self.resize(number)
        new = page_hash(number, page)
        self.total = (self.total - hashes[number - 1] + new) % _MODULUS
        hashes[number - 1] = new

    def resize(self, pages: int) -> None:
        """Drops the pages after the new end, or adds pages of zeros."""
        hashes = self._hashes
        if pages < len(hashes):
            self.total = (self.total - sum(hashes[pages:])) % _MODULUS
            del hashes[pages:]
        else:
            hashes.extend(array("Q", bytes(8 * (pages - len(hashes)))))


def hashed(pages: Pages, hashes: PageHashes) -> Pages:
    """Passes pages through and adds each to the hashes."""
    for number, page in pages:
        hashes.put(number, page)
        yield number, page
