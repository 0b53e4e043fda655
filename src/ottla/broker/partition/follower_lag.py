"""How far a follower is behind its leader."""

from __future__ import annotations

MIB = 1 << 20

LAGGING_FROM_BYTES = 8 * MIB
"""Lag from which a partition counts as lagging. It is live again below `LIVE_BELOW_BYTES`."""
LIVE_BELOW_BYTES = MIB


class Lag:
    """A follower's lag in bytes, as far as its leader's replies tell."""

    __slots__ = ("_bytes_an_offset", "is_known", "is_lagging", "size_bytes")

    def __init__(self, *, is_lagging: bool) -> None:
        self.is_lagging = is_lagging
        self.is_known = not is_lagging
        """Whether a reply has told the lag yet."""
        self.size_bytes = 0
        self._bytes_an_offset = 0.0

    def note(self, offsets_taken: int, bytes_taken: int, offsets_behind: int) -> None:
        """Updates the lag from a reply. `offsets_behind` counts up to the high watermark, so an in-sync replica has
        none."""
        self.is_known = True
        if offsets_taken > 0:
            self._bytes_an_offset = bytes_taken / offsets_taken
        if offsets_behind > 0 and not self._bytes_an_offset:
            return  # the reply was full before this partition's turn, so the size of its lag is unknown
        self.size_bytes = int(max(offsets_behind, 0) * self._bytes_an_offset)
        if self.size_bytes >= LAGGING_FROM_BYTES:
            self.is_lagging = True
        elif self.size_bytes < LIVE_BELOW_BYTES:
            self.is_lagging = False
