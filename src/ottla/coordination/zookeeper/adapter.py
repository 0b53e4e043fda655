"""Coordination through ZooKeeper.

There is one session for entries and watches, which kazoo keeps alive by itself, and one more for each lease, which only
its owner keeps alive. A lease's session holds an ephemeral node; when that node is gone, any client ends the lease in a
transaction.

ZooKeeper measures a session's time from the last request that its leader heard of, and followers report to the leader
every half tick. A session has at least two ticks. The owner of a lease therefore relies on two thirds of the timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from kazoo.exceptions import KazooException

from ottla.coordination.held_lease import HeldLease
from ottla.coordination.port import (
    OPERATIONS_MAX,
    Batch,
    Condition,
    Entry,
    Lease,
    LeaseId,
    Operation,
    Outcome,
    OutcomeUnknownError,
    Resync,
    Revision,
    Snapshot,
    UnavailableError,
    Watch,
    check_commit,
)
from ottla.coordination.zookeeper.history import Reader
from ottla.coordination.zookeeper.layout import Paths, encode_keys
from ottla.coordination.zookeeper.session import LeaseSession, Session
from ottla.coordination.zookeeper.store import Transactions
from ottla.ports import Clock

log = logging.getLogger("ottla.coordination")

SESSION_TIMEOUT_S = 4.0
"""Timeout of the session that holds nothing: bounds the time until a dead server is noticed. ZooKeeper's minimum by
default."""
HELD = 2 / 3
HISTORY_MAX = 1000
POLL_S = 5.0
"""Interval between two checks without an event. kazoo's events are reliable; this is only a safeguard."""
PAUSE_S = 0.1


class ZookeeperCoordination:
    """Implements `port.Coordination`. Create it with `open`."""

    operations_max = OPERATIONS_MAX

    def __init__(self, hosts: str, paths: Paths, clock: Clock, history_max: int, timeout_s: float) -> None:
        self._hosts = hosts
        self._paths = paths
        self._clock = clock
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._session = Session(hosts, SESSION_TIMEOUT_S, self._on_state)
        self._client = self._session.client
        self._transactions = Transactions(self._session, paths, history_max, timeout_s)
        self._reader = Reader(self._client, paths, self._transactions)
        self._watches: set[asyncio.Event] = set()
        self._leases: set[ZookeeperLease] = set()
        self._leases_changed = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()
        self._attendant: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls, hosts: str, cluster: str, clock: Clock, *, request_timeout_ms: int = 5000, history_max: int = HISTORY_MAX
    ) -> Self:
        """Connects to ZooKeeper. `hosts` has the form of ZooKeeper's clients: host:port,host:port. Raises
        UnavailableError."""
        timeout_s = request_timeout_ms / 1000
        client = cls(hosts, Paths(cluster), clock, history_max, timeout_s)
        await client._session.start(timeout_s)
        try:
            await client._transactions.prepare()
        except (KazooException, OutcomeUnknownError) as error:
            await client.close()
            raise UnavailableError(f"could not create the cluster's nodes in ZooKeeper: {error}") from error
        client._attendant = asyncio.create_task(client._attend(), name="coordination")
        return client

    # -- entries ---------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Entry | None:
        await self._connection()
        return await self._reader.get(key)

    async def snapshot(self, prefix: str = "") -> Snapshot:
        await self._connection()
        return await self._reader.snapshot(prefix)

    async def commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        check_commit(conditions, operations)
        await self._connection()
        return await self._transactions.commit(tuple(conditions), tuple(operations))

    async def watch(self, prefix: str, after: Revision) -> Watch:
        changed = asyncio.Event()
        self._watches.add(changed)
        try:
            while not self._closed:
                changed.clear()
                try:
                    batches = await self._changes(after)
                except (UnavailableError, KazooException):
                    await asyncio.sleep(PAUSE_S)
                    continue
                if batches is None:
                    yield Resync()
                    return
                for batch in batches:
                    if part := batch.under(prefix):
                        yield part
                    after = batch.revision
                if not batches:
                    await _wait(changed)
        finally:
            self._watches.discard(changed)

    async def _changes(self, after: Revision) -> list[Batch] | None:
        """Returns the next batches, an empty list if there are none yet, or None if the watch cannot continue."""
        head = await self._reader.head(watch=self._on_revision)
        if head.revision < after:  # a lagging server, or a restored store
            head = await self._reader.synced_head()
        if not head.history_start <= after <= head.revision:
            return None
        return await self._reader.changes(after, head.revision) if after < head.revision else []

    async def close(self) -> None:
        self._closed = True
        self._wake_watches()
        if self._attendant is not None:
            self._attendant.cancel()
            with suppress(asyncio.CancelledError):
                await self._attendant
        for lease in list(self._leases):
            lease.lost = True
            await lease.session.stop()
        await asyncio.gather(*self._ending)
        await self._session.stop()

    async def _connection(self) -> None:
        if self._closed:
            raise UnavailableError("the coordination client is closed")
        await self._session.connection(self._timeout_s)

    # -- leases ----------------------------------------------------------------------------------------------

    async def open_lease(self, ttl_ms: int) -> Lease:
        await self._connection()
        session = LeaseSession(self._hosts, ttl_ms / 1000, self._on_lease_state)
        await session.start(self._timeout_s)
        try:
            sent_ms = self._clock.monotonic_ms()
            lease_id = await self._announce(session)
        except BaseException as error:
            await session.stop()
            if isinstance(error, KazooException | OutcomeUnknownError):
                raise UnavailableError(f"could not create a lease: {error!r}") from error
            raise
        lease = ZookeeperLease(self, session, lease_id, sent_ms, self._clock)
        self._leases.add(lease)
        return lease

    async def _announce(self, session: LeaseSession) -> LeaseId:
        identity = session.client.client_id
        if identity is None:
            raise UnavailableError("there is no connection to ZooKeeper")
        lease_id = LeaseId(identity[0])
        path, timeout_s = self._paths.alive_of(lease_id), self._timeout_s
        await session.call(session.client.create_async, path, ephemeral=True, timeout_s=timeout_s)
        await self._session.call(
            self._client.create_async, self._paths.lease(lease_id), encode_keys([]), timeout_s=timeout_s
        )
        return lease_id

    async def renew(self, lease: ZookeeperLease) -> bool:
        """Returns whether the lease still exists; asking keeps its session alive. Raises UnavailableError."""
        lease.session.allow_ping()
        await lease.session.connection(self._timeout_s)
        if lease.session.was_lost:
            return False
        exists = lease.session.client.exists_async
        try:
            found = await lease.session.call(exists, self._paths.alive_of(lease.id), timeout_s=self._timeout_s)
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error
        return found is not None

    async def revoke(self, lease: ZookeeperLease) -> None:
        """Ends the lease, deletes its entries and closes its session. Raises UnavailableError."""
        await self._connection()
        try:
            await self._transactions.end_lease(lease.id)
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error
        finally:
            self._leases.discard(lease)
            await lease.session.stop()

    async def _attend(self) -> None:
        """Ends leases whose owner is gone, until the client is closed."""
        while True:
            self._leases_changed.clear()
            try:
                await self._connection()
                for lease in await self._ended_leases():
                    await self._transactions.end_lease(lease)
            except (UnavailableError, OutcomeUnknownError, KazooException) as error:
                log.warning("could not end expired leases, will retry: %s", error)
                await asyncio.sleep(PAUSE_S)
                continue
            except Exception:
                log.exception("the check for expired leases failed")
            await _wait(self._leases_changed)

    async def _ended_leases(self) -> list[LeaseId]:
        """Returns the leases without a live owner. The order of the reads matters: a lease's ephemeral node is created
        first."""
        read = self._transactions.read
        leases = await read(self._client.get_children_async, self._paths.leases)
        alive = await read(self._client.get_children_async, self._paths.alive, watch=self._on_alive)
        return [LeaseId(int(name)) for name in sorted(set(leases) - set(alive))]

    # -- callbacks from kazoo's threads ----------------------------------------------------------------------------

    def _on_revision(self, event: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake_watches)

    def _on_alive(self, event: object) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._leases_changed.set)

    def _on_state(self) -> None:
        self._leases_changed.set()
        self._wake_watches()

    def _on_lease_state(self) -> None:
        for lease in [one for one in self._leases if one.session.was_lost]:
            lease.lost = True
            self._leases.discard(lease)
            ending = asyncio.create_task(lease.session.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _wake_watches(self) -> None:
        for changed in self._watches:
            changed.set()


class ZookeeperLease(HeldLease):
    """A lease that is held by a session of its own."""

    def __init__(
        self, client: ZookeeperCoordination, session: LeaseSession, lease_id: LeaseId, sent_ms: float, clock: Clock
    ) -> None:
        super().__init__(lease_id, session.granted_ms, sent_ms, clock, session.granted_ms * HELD)
        self.session = session
        self._client = client

    async def _renew(self, sent_ms: float) -> bool:
        return await self._client.renew(self)

    async def _revoke(self) -> None:
        await self._client.revoke(self)


async def _wait(event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(POLL_S):
            await event.wait()
