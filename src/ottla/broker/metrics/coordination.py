"""A coordination store that measures the duration of its calls and counts their failures."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from ottla.coordination.port import (
    Condition,
    Coordination,
    Entry,
    Lease,
    LeaseId,
    Operation,
    Outcome,
    OutcomeUnknownError,
    Revision,
    Snapshot,
    UnavailableError,
    Watch,
)
from ottla.ports import Clock
from ottla.protocol.model.histogram import Histogram

T = TypeVar("T")

CALLS = ("get", "snapshot", "commit", "open_lease", "renew_lease")
ERRORS = {UnavailableError: "unavailable", OutcomeUnknownError: "unknown"}


class MeteredCoordination:
    """Wraps a store and implements `coordination.port.Coordination`."""

    def __init__(self, store: Coordination, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.answered_s = {call: Histogram() for call in CALLS}
        self.failures = {(call, error): 0 for call in CALLS for error in ERRORS.values()}

    @property
    def operations_max(self) -> int:
        return self._store.operations_max

    async def get(self, key: str) -> Entry | None:
        return await self.timed("get", self._store.get(key))

    async def snapshot(self, prefix: str = "") -> Snapshot:
        return await self.timed("snapshot", self._store.snapshot(prefix))

    async def commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        return await self.timed("commit", self._store.commit(conditions, operations))

    async def open_lease(self, ttl_ms: int) -> Lease:
        return MeteredLease(await self.timed("open_lease", self._store.open_lease(ttl_ms)), self)

    def watch(self, prefix: str, after: Revision) -> Watch:
        return self._store.watch(prefix, after)

    async def close(self) -> None:
        await self._store.close()

    async def timed(self, call: str, answer: Awaitable[T]) -> T:
        """Awaits a call of the store and records its duration or its failure."""
        began_s = self._clock.seconds()
        try:
            answered = await answer
        except (UnavailableError, OutcomeUnknownError) as error:
            kind = UnavailableError if isinstance(error, UnavailableError) else OutcomeUnknownError
            self.failures[call, ERRORS[kind]] += 1
            raise
        self.answered_s[call].note(self._clock.seconds() - began_s)
        return answered


class MeteredLease:
    """Wraps a lease and implements `coordination.port.Lease`, so that renewals are measured too."""

    def __init__(self, lease: Lease, metered: MeteredCoordination) -> None:
        self._lease = lease
        self._metered = metered
        self.is_alive = lease.is_alive

    @property
    def id(self) -> LeaseId:
        return self._lease.id

    @property
    def ttl_ms(self) -> int:
        return self._lease.ttl_ms

    @property
    def deadline_ms(self) -> float:
        return self._lease.deadline_ms

    @property
    def lost(self) -> bool:
        return self._lease.lost

    async def renew(self) -> bool:
        return await self._metered.timed("renew_lease", self._lease.renew())

    async def revoke(self) -> None:
        await self._lease.revoke()
