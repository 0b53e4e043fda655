"""The part of a lease that all adapters share: when its owner has to stop."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ottla.coordination.port import LeaseId
from ottla.ports import Clock


class HeldLease(ABC):
    """Implements `port.Lease`; the adapter says how to reach the store.

    `held_ms` is how long after a renewal was sent the store is sure to keep the lease. It is the time to live, unless
    the store counts from an earlier moment.
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
        if self.lost:  # the store may have said so meanwhile
            return False
        self.deadline_ms = max(self.deadline_ms, sent_ms + self._held_ms)
        return True

    async def revoke(self) -> None:
        self.lost = True
        await self._revoke()

    @abstractmethod
    async def _renew(self, sent_ms: float) -> bool:
        """False if the store says that the lease has ended. Raises UnavailableError."""

    @abstractmethod
    async def _revoke(self) -> None:
        """Raises UnavailableError."""
