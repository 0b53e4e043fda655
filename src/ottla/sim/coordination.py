"""Coordination in memory: one store on virtual time, shared by the clients of several simulated processes.

The store has its own clock, so that it keeps running while a client's process is paused or dead. Its replies reach a
client through the client's clock. `faults` controls what goes wrong, driven by the store's seed:

    store.faults.delay_ms = (1, 50)        delay of a request, each way
    store.faults.break_share = 0.1         share of requests whose connection breaks: the outcome is unknown
    store.faults.watch_lag_ms = (0, 500)   delay until watches see a transaction
    store.faults.expiry_slack_ms = 1000    maximum delay until the store notices that a lease has expired
    store.cut_off(client), store.reconnect(client), store.stop(), store.start()
    client.lose_replies(3)                 the next three requests are served, but their replies are lost
    store.lose_lease(id), store.forget_history(), store.break_watches(), client.die()

`store.observers` are called for each transaction when it is applied, before anybody else sees it;
`store.holder_of(lease)` is the client that opened a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from random import Random
from typing import Generic, TypeVar

from ottla.coordination.held_lease import HeldLease
from ottla.coordination.port import (
    OPERATIONS_MAX,
    Batch,
    Change,
    Committed,
    Condition,
    Conflict,
    Delete,
    Entry,
    Lease,
    LeaseEnded,
    LeaseId,
    Operation,
    Outcome,
    OutcomeUnknownError,
    Put,
    Resync,
    Revision,
    Snapshot,
    UnavailableError,
    Watch,
    check_commit,
    conditions_hold,
    lease_of,
)
from ottla.ports import Clock, Timer
from ottla.reach import branch

_LOST = branch("a reply of the coordination store is lost", __name__)
_LOST_AGAIN = branch("several replies of the coordination store are lost in a row", __name__)

T = TypeVar("T")
Span = tuple[float, float]

LATE_MS_MAX = 10_000.0


@dataclass(slots=True)
class CoordinationFaults:
    """Faults of the store; see the module."""

    delay_ms: Span = (0.1, 1.0)
    break_share: float = 0.0
    watch_lag_ms: Span = (0.1, 1.0)
    expiry_slack_ms: float = 0.0


class Break(Enum):
    """What happened to a request whose connection broke. Its client cannot tell."""

    NOT_DELIVERED = auto()
    NOT_ANSWERED = auto()
    STILL_ON_ITS_WAY = auto()
    """The request will be delivered after its client has given up."""


class SimCoordination:
    """The store. Each simulated process has its own `client`."""

    def __init__(self, clock: Clock, *, seed: int) -> None:
        self.clock = clock
        self.rng = Random(seed)
        self.faults = CoordinationFaults()
        self.revision = Revision(0)
        self.is_running = True
        self._entries: dict[str, Entry] = {}
        self._history: list[Batch] = []
        self._history_start = Revision(0)
        self._leases: dict[LeaseId, Timer] = {}
        self._lease_count = 0
        self._holders: dict[LeaseId, SimCoordinationClient] = {}
        self.observers: list[Callable[[Batch], None]] = []
        self._cut_off: set[SimCoordinationClient] = set()
        self._watches: dict[SimWatch, None] = {}

    def client(self, clock: Clock, *, name: str = "", request_timeout_ms: float = 5000.0) -> SimCoordinationClient:
        """Creates a client that runs on the clock of its process."""
        return SimCoordinationClient(self, clock, name, request_timeout_ms)

    # -- faults ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Makes the store unreachable. It keeps its state, and leases continue to run."""
        self.is_running = False

    def start(self) -> None:
        """Makes the store reachable again after `stop`."""
        self.is_running = True
        self._poke_watches()

    def cut_off(self, client: SimCoordinationClient) -> None:
        """Cuts the connection of a client in both directions. Its leases continue to run."""
        self._cut_off.add(client)

    def reconnect(self, client: SimCoordinationClient) -> None:
        """Ends `cut_off`. Watches then receive what they have missed."""
        self._cut_off.discard(client)
        self._poke_watches()

    def reaches(self, client: SimCoordinationClient) -> bool:
        """Returns whether messages pass between the store and the client now."""
        return self.is_running and client not in self._cut_off

    def lose_lease(self, lease: LeaseId) -> None:
        """Ends a lease early. Its holder is not notified."""
        self.end_lease(lease)

    def forget_history(self) -> None:
        """Compacts the history: watches that have not read all of it get `Resync`."""
        self._history.clear()
        self._history_start = self.revision

    def break_watches(self) -> None:
        """Breaks all watches, so that they cannot resume, as after a reconnection to a restored store."""
        for watch in list(self._watches):
            watch.is_broken = True
        self._poke_watches()

    # -- state -----------------------------------------------------------------------------------------------

    def get(self, key: str) -> Entry | None:
        """Returns the current entry of a key, or None."""
        return self._entries.get(key)

    def snapshot(self, prefix: str = "") -> Snapshot:
        """Returns the entries whose keys begin with the prefix, in the order of their keys."""
        entries = [entry for key, entry in sorted(self._entries.items()) if key.startswith(prefix)]
        return Snapshot(tuple(entries), self.revision)

    def commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        """Applies all operations in one revision, or none of them if a condition fails or their lease has ended."""
        entries = {condition.key: self._entries.get(condition.key) for condition in conditions}
        if not conditions_hold(conditions, entries):
            return Conflict(entries)
        lease = lease_of(operations)
        if lease is not None and lease not in self._leases:
            return LeaseEnded(lease)
        self._apply(operations)
        return Committed(self.revision)

    def _apply(self, operations: Iterable[Operation]) -> None:
        revision = Revision(self.revision + 1)
        changes: list[Change] = []
        for operation in operations:
            match operation:
                case Put(key=key, value=value, lease=lease):
                    self._entries[key] = Entry(key, value, revision, lease)
                    changes.append(Change(key, self._entries[key]))
                case Delete(key=key):
                    if self._entries.pop(key, None) is not None:
                        changes.append(Change(key, None))
        if changes:
            self.revision = revision
            batch = Batch(tuple(changes), revision)
            self._history.append(batch)
            for observer in self.observers:
                observer(batch)
            self._poke_watches()

    def history_after(self, after: Revision) -> Sequence[Batch] | Resync:
        """Returns the transactions after a revision, or Resync if the history does not cover all of them."""
        if not self._history_start <= after <= self.revision:
            return Resync()
        return self._history[after - self._history_start :]

    # -- leases ----------------------------------------------------------------------------------------------

    def add_lease(self, ttl_ms: float, holder: SimCoordinationClient) -> LeaseId:
        """Opens a lease, which ends after its TTL and a random slack unless it is renewed."""
        self._lease_count += 1
        lease = LeaseId(self._lease_count)
        self._holders[lease] = holder
        self._schedule_end(lease, ttl_ms)
        return lease

    def holder_of(self, lease: LeaseId) -> SimCoordinationClient:
        """Returns the client that opened a lease, even if the lease has ended."""
        return self._holders[lease]

    def renew_lease(self, lease: LeaseId, ttl_ms: float) -> bool:
        """Restarts the TTL of a lease. Returns False if the lease has ended."""
        timer = self._leases.get(lease)
        if timer is None:
            return False
        timer.cancel()
        self._schedule_end(lease, ttl_ms)
        return True

    def end_lease(self, lease: LeaseId) -> None:
        """Ends a lease and deletes its entries in one transaction. Does nothing if it has ended already."""
        timer = self._leases.pop(lease, None)
        if timer is not None:
            timer.cancel()
            self._apply([Delete(key) for key, entry in sorted(self._entries.items()) if entry.lease == lease])

    def _schedule_end(self, lease: LeaseId, ttl_ms: float) -> None:
        slack_ms = self.rng.random() * self.faults.expiry_slack_ms
        self._leases[lease] = self.clock.call_later(ttl_ms + slack_ms, partial(self.end_lease, lease))

    # -- watches ---------------------------------------------------------------------------------------------

    def add_watch(self, watch: SimWatch) -> None:
        """Registers a watch and schedules its first delivery."""
        self._watches[watch] = None
        watch.poke()

    def remove_watch(self, watch: SimWatch) -> None:
        """Removes a watch. Does nothing if it is not registered."""
        self._watches.pop(watch, None)

    def _poke_watches(self) -> None:
        for watch in list(self._watches):
            watch.poke()


class SimWatch:
    """The store's side of a watch, and the queue of its reader."""

    def __init__(self, client: SimCoordinationClient, prefix: str, after: Revision) -> None:
        self.client = client
        self.is_broken = False
        self.arrived = asyncio.Event()
        self.queue: list[Batch | Resync] = []
        self._prefix = prefix
        self._sent = after
        self._is_due = False

    def poke(self) -> None:
        """Schedules a delivery after the lag."""
        if not self._is_due:
            self._is_due = True
            store = self.client.store
            store.clock.call_later(store.rng.uniform(*store.faults.watch_lag_ms), self._tell)

    def _tell(self) -> None:
        self._is_due = False
        store = self.client.store
        if not store.reaches(self.client):
            return  # the end of the outage pokes it again
        history = Resync() if self.is_broken else store.history_after(self._sent)
        if isinstance(history, Resync):
            store.remove_watch(self)
            self._deliver([history])
            return
        self._sent = store.revision
        found = [part for batch in history if (part := batch.under(self._prefix)) is not None]
        if found:
            self._deliver(found)

    def _deliver(self, found: Sequence[Batch | Resync]) -> None:
        self.client.clock.call_soon(partial(self._arrive, found))

    def _arrive(self, found: Sequence[Batch | Resync]) -> None:
        """Runs on the client's loop as soon as its process runs."""
        self.queue += found
        self.arrived.set()


class SimCoordinationClient:
    """Implements `port.Coordination`."""

    operations_max = OPERATIONS_MAX

    def __init__(self, store: SimCoordination, clock: Clock, name: str, request_timeout_ms: float) -> None:
        self.store = store
        self.clock = clock
        self.name = name
        self._request_timeout_ms = request_timeout_ms
        self._leases: list[LeaseId] = []
        self._watches: set[SimWatch] = set()
        self._closed = False
        self.replies_to_lose = 0
        self.lost_in_a_row = 0
        """Number of replies that were lost since the last one arrived."""

    def __repr__(self) -> str:
        return f"<coordination client {self.name}>"

    async def get(self, key: str) -> Entry | None:
        return await self._read(partial(self.store.get, key))

    async def snapshot(self, prefix: str = "") -> Snapshot:
        return await self._read(partial(self.store.snapshot, prefix))

    async def commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        check_commit(conditions, operations)
        return await self._request(partial(self.store.commit, tuple(conditions), tuple(operations)))

    async def open_lease(self, ttl_ms: int) -> Lease:
        sent_ms = self.clock.monotonic_ms()
        lease_id = await self._read(partial(self.store.add_lease, ttl_ms, self))
        self._leases.append(lease_id)
        return SimLease(self, lease_id, ttl_ms, sent_ms)

    async def renew_lease(self, lease: LeaseId, ttl_ms: float) -> bool:
        """Renews a lease at the store. Returns False if the lease has ended. Raises UnavailableError if there is no
        reply."""
        return await self._read(partial(self.store.renew_lease, lease, ttl_ms))

    async def end_lease(self, lease: LeaseId) -> None:
        """Ends a lease at the store. Raises UnavailableError if there is no reply; the lease may have ended even so."""
        await self._read(partial(self.store.end_lease, lease))

    async def watch(self, prefix: str, after: Revision) -> Watch:
        watch = SimWatch(self, prefix, after)
        self._watches.add(watch)
        self.store.add_watch(watch)
        try:
            while not self._closed:
                if not watch.queue:
                    watch.arrived.clear()
                    await watch.arrived.wait()
                    continue
                found = watch.queue.pop(0)
                yield found
                if isinstance(found, Resync):
                    return
        finally:
            self.store.remove_watch(watch)
            self._watches.discard(watch)

    async def close(self) -> None:
        self._closed = True
        for watch in self._watches:
            watch.arrived.set()

    def lose_replies(self, count: int) -> None:
        """Loses the replies to the next requests, which the store serves: their outcomes are unknown."""
        self.replies_to_lose = count

    def die(self, *, ends_leases: bool = False) -> None:
        """Simulates a killed process. With SQLite that ends its leases at once; with the other stores they expire."""
        self._closed = True
        for watch in self._watches:
            self.store.remove_watch(watch)
        if ends_leases:
            for lease in self._leases:
                self.store.end_lease(lease)

    # -- requests --------------------------------------------------------------------------------------------

    async def _read(self, serve: Callable[[], T]) -> T:
        """Sends a request whose outcome cannot be unknown, such as a read."""
        try:
            return await self._request(serve)
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error

    async def _request(self, serve: Callable[[], T]) -> T:
        if self._closed:
            raise UnavailableError("the coordination client is closed")
        request = SimRequest(self, serve)
        timer = self.clock.call_later(self._request_timeout_ms, partial(request.give_up, "timed out"))
        try:
            if not self.store.reaches(self) and self.store.rng.random() < 0.5:
                request.refuse()  # no connection; otherwise it is sent into a connection not yet known to be dead
            else:
                request.send()
            return await request.answered
        finally:
            timer.cancel()


class SimRequest(Generic[T]):
    """One request on its way to the store and back."""

    def __init__(self, client: SimCoordinationClient, serve: Callable[[], T]) -> None:
        self.answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._client = client
        self._store = client.store
        self._serve = serve

    def send(self) -> None:
        """Sends the request. With a probability of `break_share`, its connection breaks."""
        rng, client = self._store.rng, self._client
        if client.replies_to_lose:
            client.replies_to_lose -= 1
            broken = Break.NOT_ANSWERED
        elif rng.random() >= self._store.faults.break_share:
            self._travel(self._arrive)
            return
        else:
            broken = rng.choice(list(Break))
        client.lost_in_a_row += 1
        (_LOST_AGAIN if client.lost_in_a_row > 1 else _LOST)()
        if broken is Break.NOT_ANSWERED:
            self._travel(self._arrive_unanswered)
        elif broken is Break.STILL_ON_ITS_WAY:
            self._store.clock.call_later(rng.uniform(0, LATE_MS_MAX), self._arrive_unanswered)
        self._travel(partial(self._travel, partial(self._tell, partial(self.give_up, "the connection broke"))))

    def refuse(self) -> None:
        """Fails the request with UnavailableError after a delay, as if no connection could be made."""
        self._travel(partial(self._tell, partial(self._fail, UnavailableError("there is no connection"))))

    def give_up(self, reason: str) -> None:
        """Fails the request with OutcomeUnknownError, unless its reply has arrived."""
        self._fail(OutcomeUnknownError(reason))

    def _travel(self, then: Callable[[], None]) -> None:
        self._store.clock.call_later(self._store.rng.uniform(*self._store.faults.delay_ms), then)

    def _arrive(self) -> None:
        if self._store.reaches(self._client):
            self._travel(partial(self._return, self._serve()))

    def _arrive_unanswered(self) -> None:
        if self._store.reaches(self._client):
            self._serve()

    def _return(self, result: T) -> None:
        if self._store.reaches(self._client):
            self._tell(partial(self._settle, result))

    def _tell(self, callback: Callable[[], None]) -> None:
        """Runs the callback on the client's loop, as soon as its process runs."""
        self._client.clock.call_soon(callback)

    def _settle(self, result: T) -> None:
        self._client.lost_in_a_row = 0
        if not self.answered.done():
            self.answered.set_result(result)

    def _fail(self, error: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class SimLease(HeldLease):
    """A lease of the simulated store."""

    def __init__(self, client: SimCoordinationClient, lease_id: LeaseId, ttl_ms: int, sent_ms: float) -> None:
        super().__init__(lease_id, ttl_ms, sent_ms, client.clock, ttl_ms)
        self._client = client

    async def _renew(self, sent_ms: float) -> bool:
        return await self._client.renew_lease(self.id, self.ttl_ms)

    async def _revoke(self) -> None:
        await self._client.end_lease(self.id)
