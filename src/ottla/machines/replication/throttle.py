"""A token bucket that throttles replication traffic.

Only whole batches move, so a turn may take more than the bucket holds. The debt is repaid before the next turn, so the
rate holds when averaged over more than a second. Pure: time is passed in as a number.
"""

from __future__ import annotations

UNLIMITED = 2**63 - 1
BURST_MS = 1000
"""Capacity of the bucket, as the time in which it fills. A replica that fetches twice a second loses nothing."""
TURN_BYTES_MIN = 64 * 1024
"""Minimum number of bytes that a turn may take, so that a low rate does not lead to tiny reads."""
TURN_MS = 100
"""At a low rate, a turn comes after this time and takes less."""


class Throttle:
    """The token bucket of one direction of throttled replication."""

    __slots__ = ("_available", "_filled_ms", "_rate")

    def __init__(self) -> None:
        self._rate = UNLIMITED
        self._available = 0.0
        """Available bytes; negative while there is a debt."""
        self._filled_ms = 0.0

    @property
    def is_limited(self) -> bool:
        """False if the rate is unlimited, so that nothing has to be counted."""
        return self._rate < UNLIMITED

    def set_rate(self, bytes_per_s: int, now_ms: float) -> None:
        """Changes the rate immediately. A debt from the old rate is dropped rather than repaid at the new rate."""
        if bytes_per_s != self._rate:
            self._rate = bytes_per_s
            self._available = 0.0
            self._filled_ms = now_ms

    def allowance(self, now_ms: float, pending: int = 0) -> int:
        """Returns the number of bytes that may move now, beyond `pending` bytes that are not recorded yet; 0 means
        wait."""
        if not self.is_limited:
            return UNLIMITED
        self._fill(now_ms)
        available = self._available - pending
        return max(int(available), TURN_BYTES_MIN) if available >= self._turn_bytes and self._rate else 0

    def record(self, size_bytes: int, now_ms: float) -> None:
        """Deducts bytes that have moved."""
        if self.is_limited:
            self._fill(now_ms)
            self._available -= size_bytes

    def wait_ms(self, now_ms: float) -> float:
        """Returns the time until `allowance` is not 0."""
        if not self.is_limited:
            return 0.0
        if not self._rate:
            return float("inf")
        self._fill(now_ms)
        return max((self._turn_bytes - self._available) * 1000 / self._rate, 0.0)

    @property
    def _turn_bytes(self) -> float:
        return min(TURN_BYTES_MIN, self._rate * TURN_MS / 1000)

    def _fill(self, now_ms: float) -> None:
        flowed = max(now_ms - self._filled_ms, 0.0) * self._rate / 1000
        self._available = min(self._available + flowed, self._rate * BURST_MS / 1000)
        self._filled_ms = now_ms
