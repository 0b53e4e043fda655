"""Live and lagging partitions are fetched by themselves, so that a replica that has far to go delays nobody.

A round of the lane for lagging partitions is small, and the next one begins when this broker's disk has taken the last:
whatever else the two brokers do comes in between. If the lag does not shrink that way, rounds grow.
"""

from __future__ import annotations

from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20

LAGGING_FROM_BYTES = 8 * MIB
"""From here on a partition is lagging; below a part of it, it is live again."""
LIVE_BELOW_BYTES = MIB
ROUND_BYTES_MIN = 256 * KIB
ROUND_BYTES_MAX = 8 * MIB
PACE_CHECK_MS = 1000.0
SHRINKS = 0.95
"""What is left of a lag after a check, if it shrinks fast enough: a gigabyte is gone after a few minutes at the
latest."""


class Lane(NamedTuple):
    name: str
    partition_bytes_max: int
    waits_for_disk: bool


LIVE = Lane("live", MIB, waits_for_disk=False)
CATCH_UP = Lane("catch-up", ROUND_BYTES_MAX, waits_for_disk=True)


class Lag:
    """How far a follower is behind, in bytes, as far as its leader's answers tell."""

    __slots__ = ("_bytes_an_offset", "is_known", "is_lagging", "size_bytes")

    def __init__(self, *, is_lagging: bool) -> None:
        self.is_lagging = is_lagging
        self.is_known = not is_lagging
        """Else the first answer tells."""
        self.size_bytes = 0
        self._bytes_an_offset = 0.0

    def note(self, offsets_taken: int, bytes_taken: int, offsets_behind: int) -> None:
        """Those that are behind the watermark: whoever is in sync has none."""
        self.is_known = True
        if offsets_taken > 0:
            self._bytes_an_offset = bytes_taken / offsets_taken
        if offsets_behind > 0 and not self._bytes_an_offset:
            return  # the reply was full before it came to this partition: nothing says how much it is
        self.size_bytes = int(max(offsets_behind, 0) * self._bytes_an_offset)
        if self.size_bytes >= LAGGING_FROM_BYTES:
            self.is_lagging = True
        elif self.size_bytes < LIVE_BELOW_BYTES:
            self.is_lagging = False


class Pace:
    """The bytes of a round."""

    __slots__ = ("_checked_ms", "_lag_then", "round_bytes")

    def __init__(self) -> None:
        self.round_bytes = ROUND_BYTES_MIN
        self._lag_then = 0
        self._checked_ms = 0.0

    def note(self, lag_bytes: int, now_ms: float) -> None:
        if now_ms - self._checked_ms < PACE_CHECK_MS:
            return
        is_slow = self._lag_then > 0 and lag_bytes > self._lag_then * SHRINKS
        wanted = self.round_bytes * 2 if is_slow else self.round_bytes // 2
        self.round_bytes = min(max(wanted, ROUND_BYTES_MIN), ROUND_BYTES_MAX)
        self._checked_ms, self._lag_then = now_ms, lag_bytes
