"""One number that stands for all pages of a database, kept up to date page by page.

It is the sum of a hash of each page and its number. So it follows from the one before and the pages that a transaction
wrote, and the same number comes out of the whole file read at once: a copy that has it is a copy. A page of zeros
counts nothing, as a page that was never written does: both read the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b

Pages = Iterator[tuple[int, bytes]]
"""With their numbers, from 1."""
_MODULUS = 1 << 64
_ZEROS = bytes(65536)


def page_hash(number: int, page: bytes) -> int:
    if page == _ZEROS[: len(page)]:
        return 0
    return int.from_bytes(blake2b(page, digest_size=8, salt=number.to_bytes(8, "little")).digest(), "little")


class PageHashes:
    def __init__(self) -> None:
        self._hashes = array("Q")
        self.total = 0

    def __len__(self) -> int:
        return len(self._hashes)

    def put(self, number: int, page: bytes) -> None:
        """Pages have numbers from 1."""
        hashes = self._hashes
        if number > len(hashes):
            self.resize(number)
        new = page_hash(number, page)
        self.total = (self.total - hashes[number - 1] + new) % _MODULUS
        hashes[number - 1] = new

    def resize(self, pages: int) -> None:
        """What lies behind is gone; what is new is zeros."""
        hashes = self._hashes
        if pages < len(hashes):
            self.total = (self.total - sum(hashes[pages:])) % _MODULUS
            del hashes[pages:]
        else:
            hashes.extend(array("Q", bytes(8 * (pages - len(hashes)))))


def hashed(pages: Pages, hashes: PageHashes) -> Pages:
    """The same pages; each is in the hashes when it has gone by."""
    for number, page in pages:
        hashes.put(number, page)
        yield number, page
