"""An append in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

APPEND_BYTES_MAX = 12 * 1024 * 1024
"""Maximum size of an append. A broker accepts messages of 16 MiB; a log accepts batches of max.message.bytes, which is
1 MiB by default."""
ENTRY_BYTES = 200
"""Overhead of an append in addition to its data."""


class Append:
    """One call of `append` or `append_many` in progress."""

    __slots__ = ("count", "data", "expected_end", "first_id", "future", "is_sent", "size_bytes")

    def __init__(self, first_id: int, data: Sequence[bytes], expected_end: int | None) -> None:
        self.first_id = first_id
        self.data = data
        self.count = len(data)
        self.expected_end = expected_end
        self.size_bytes = sum(map(len, data)) + ENTRY_BYTES * self.count
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.is_sent = False
        """Set once it has been sent: it may be in the log."""

    @property
    def is_whole(self) -> bool:
        """True if it has to be appended atomically, in a message of its own."""
        return self.count > 1 or self.expected_end is not None
