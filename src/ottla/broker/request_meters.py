"""Counters of requests, their durations and their errors, for the metrics.

They are plain numbers, updated once per request or once per run of requests. `broker.metrics` reads them on demand.
"""

from __future__ import annotations

from collections import defaultdict

from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.model.histogram import Histogram


class RequestMeters:
    """The counters since the broker started. A duration runs from the start of a request's processing until its reply
    is ready."""

    __slots__ = ("cold_reads", "durations_s", "errors", "fetch_s", "produce_s", "requests")

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[int, int], int] = defaultdict(int)
        """Started requests by API key and version."""
        self.errors: defaultdict[tuple[int, int], int] = defaultdict(int)
        """Error codes by API key and code. One reply has an error code for each partition or other item it is about."""
        self.durations_s: defaultdict[int, Histogram] = defaultdict(Histogram)
        """Durations by API key, except Produce and Fetch, which have histograms of their own."""
        self.produce_s = {acks: Histogram() for acks in (-1, 0, 1)}
        self.fetch_s = {
            (is_replica, has_waited): Histogram() for is_replica in (False, True) for has_waited in (False, True)
        }
        """Durations of fetches by kind of reader, and by whether the fetch had to wait for data: the waiting time of a
        reader that is caught up says nothing about the broker."""
        self.cold_reads = 0
        """Fetch reads that had to go to a disk thread."""

    def note_error(self, api_key: int, error: int, times: int = 1) -> None:
        """Counts an error code of a reply; `none` is not counted."""
        if error != ErrorCode.none:
            self.errors[api_key, error] += times
