"""Two lanes of replication: live and lagging partitions are fetched separately, so that a replica that is far behind
delays no other.

A round of the catch-up lane is small, and the next one begins when this broker's disk has taken the last, which leaves
room for the brokers' other work in between. If the lag does not shrink at that pace, rounds grow.
"""

from __future__ import annotations

from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20

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
