"""The produce requests that wait for the acknowledgement of their records in one partition."""

from __future__ import annotations

from collections import deque

from ottla.broker.partition.waits import Settled
from ottla.protocol.model.errors import ErrorCode

Wait = tuple[int, Settled]
"""The end offset of a request's records, and its callback."""


class ProduceWaits:
    """The pending produce requests of one partition, in the order of their arrival. Their offsets increase except for
    duplicates, which wait behind earlier requests: at worst slightly longer than necessary."""

    __slots__ = ("local", "replicated")

    def __init__(self) -> None:
        self.replicated: deque[Wait] = deque()
        """Requests that wait for the high watermark."""
        self.local: deque[Wait] = deque()
        """acks=1 requests on a leader with followers, for which the local acknowledgement is enough."""

    def settle_replicated(self, watermark: int) -> None:
        """Settles the requests that the high watermark has passed."""
        waits = self.replicated
        while waits and waits[0][0] <= watermark:
            waits.popleft()[1](ErrorCode.none)

    def settle_local(self, acknowledged_end: int) -> None:
        """Settles the requests that the local log has acknowledged."""
        waits = self.local
        while waits and waits[0][0] <= acknowledged_end:
            waits.popleft()[1](ErrorCode.none)

    def fail_replicated(self, error: ErrorCode) -> None:
        """Fails the requests that wait for the high watermark."""
        waits, self.replicated = self.replicated, deque()
        for _, settled in waits:
            settled(error)

    def fail_all(self, error: ErrorCode) -> None:
        """Fails all requests."""
        waits = [*self.local, *self.replicated]
        self.local, self.replicated = deque(), deque()
        for _, settled in waits:
            settled(error)
