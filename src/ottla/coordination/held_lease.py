"""The part of a lease that all adapters share: the time at which its owner has to stop."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ottla.coordination.port import LeaseId
from ottla.ports import Clock


class HeldLease(ABC):
    """Implements `port.Lease`; the adapter accesses the store.

    `held_ms` is how long the store is certain to keep the lease after a renewal was sent. It equals the time to live,
    unless the store counts from an earlier moment.
    """

    def __init__(self, lease_id: LeaseId, ttl_ms: int, sent_ms: float, clock: Clock, held_ms: float) -> None:
        self.id = lease_id
        self.ttl_ms = ttl_ms
        self.deadline_ms = sent_ms + held_ms
        self.lost = False
        self._clock = clock
        self._held_ms = held_ms

    def is_alive(self, now_ms: float) -> bool:
        return not self.lost and now_ms < self.deadline_ms

    async def renew(self) -> bool:
        if self.lost:
            return False
        sent_ms = self._clock.monotonic_ms()
        if not await self._renew(sent_ms):
            self.lost = True
        if self.lost:  # the store may have reported it in the meantime
            return False
        self.deadline_ms = max(self.deadline_ms, sent_ms + self._held_ms)
        return True

    async def revoke(self) -> None:
        self.lost = True
        await self._revoke()

    @abstractmethod
    async def _renew(self, sent_ms: float) -> bool:
        """Renews the lease. Returns False if the store reports that it has expired. Raises UnavailableError."""

    @abstractmethod
    async def _revoke(self) -> None:
        """Removes the lease from the store. Raises UnavailableError."""
