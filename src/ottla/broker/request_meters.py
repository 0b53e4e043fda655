"""What was asked of a broker, how long it took and what went wrong: for whoever watches it.

Plain numbers, counted once a request, or once a run of requests. `ottla.metrics` reads them when somebody asks.
"""

from __future__ import annotations

from collections import defaultdict

from ottla.model.errors import ErrorCode
from ottla.model.histogram import Histogram


class RequestMeters:
    """Since the broker started. Durations are from when a request is taken up to when its reply is ready."""

    __slots__ = ("cold_reads", "durations_s", "errors", "fetch_s", "produce_s", "requests")

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[int, int], int] = defaultdict(int)
        """By API key and version, when they are taken up."""
        self.errors: defaultdict[tuple[int, int], int] = defaultdict(int)
        """By API key and error code: a reply has one for each partition or thing that it is about."""
        self.durations_s: defaultdict[int, Histogram] = defaultdict(Histogram)
        """By API key; but Produce and Fetch, which have their own."""
        self.produce_s = {acks: Histogram() for acks in (-1, 0, 1)}
        self.fetch_s = {
            (is_replica, has_waited): Histogram() for is_replica in (False, True) for has_waited in (False, True)
        }
        """By who asked, and whether there was too little for it at first: how long a reader that has everything waits
        says nothing of the broker."""
        self.cold_reads = 0
        """Reads of fetches that had to go to a disk thread."""

    def note_error(self, api_key: int, error: int, times: int = 1) -> None:
        if error != ErrorCode.none:
            self.errors[api_key, error] += times
