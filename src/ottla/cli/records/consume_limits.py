"""The limits at which `ottla consume` stops by itself."""

from __future__ import annotations

import time
from typing import NamedTuple

FETCH_RECORDS = 2000
END_POLL_MS = 200.0


class Limits(NamedTuple):
    """The limits of one call. None means no limit."""

    records_max: int | None
    idle_s: float | None
    at_end: bool

    def wanted(self, printed: int) -> int:
        """Returns how many records to request next."""
        return FETCH_RECORDS if self.records_max is None else min(self.records_max - printed, FETCH_RECORDS)

    def reached(self, printed: int) -> bool:
        """Returns whether this many printed records are enough."""
        return self.records_max is not None and printed >= self.records_max

    def idle_too_long(self, last_record_s: float) -> bool:
        """Returns whether the last record is too long ago. `last_record_s` is a `time.monotonic()`."""
        return self.idle_s is not None and time.monotonic() - last_record_s >= self.idle_s

    def wait_ms(self, last_record_s: float) -> float | None:
        """Returns how long the next fetch may wait: at most until the next limit has to be checked."""
        wait_ms = None
        if self.idle_s is not None:
            wait_ms = max(0.0, (last_record_s + self.idle_s - time.monotonic()) * 1000)
        if self.at_end:
            wait_ms = min(END_POLL_MS, wait_ms) if wait_ms is not None else END_POLL_MS
        return wait_ms
