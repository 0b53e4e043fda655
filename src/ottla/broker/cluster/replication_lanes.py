"""Two lanes of replication: live and lagging partitions are fetched separately, so that a replica that is far behind
delays no other.

A round of the catch-up lane is small, and the next one begins when this broker's disk has taken the last, which leaves
room for the brokers' other work in between. If the lag does not shrink at that pace, rounds grow.
"""

from __future__ import annotations

from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20

LAGGING_FROM_BYTES = 8 * MIB
"""Lag from which a partition counts as lagging. It is live again below `LIVE_BELOW_BYTES`."""
LIVE_BELOW_BYTES = MIB
ROUND_BYTES_MIN = 256 * KIB
ROUND_BYTES_MAX = 8 * MIB
PACE_CHECK_MS = 1000.0
SHRINKS = 0.95
"""The share of a lag that may remain after a check if it shrinks fast enough. At this rate a gigabyte is gone within a
few minutes."""


class Lane(NamedTuple):
    """A class of partitions that one fetcher serves."""

    name: str
    partition_bytes_max: int
    waits_for_disk: bool


LIVE = Lane("live", MIB, waits_for_disk=False)
CATCH_UP = Lane("catch-up", ROUND_BYTES_MAX, waits_for_disk=True)


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


class Pace:
    """The size of a round in the catch-up lane."""

    __slots__ = ("_checked_ms", "_lag_then", "round_bytes")

    def __init__(self) -> None:
        self.round_bytes = ROUND_BYTES_MIN
        self._lag_then = 0
        self._checked_ms = 0.0

    def note(self, lag_bytes: int, now_ms: float) -> None:
        """Adjusts the size by how much the lag has shrunk since the last check."""
        if now_ms - self._checked_ms < PACE_CHECK_MS:
            return
        is_slow = self._lag_then > 0 and lag_bytes > self._lag_then * SHRINKS
        wanted = self.round_bytes * 2 if is_slow else self.round_bytes // 2
        self.round_bytes = min(max(wanted, ROUND_BYTES_MIN), ROUND_BYTES_MAX)
        self._checked_ms, self._lag_then = now_ms, lag_bytes
