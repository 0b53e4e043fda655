"""Requests to other brokers: one connection per broker and purpose, with one request in flight.

Items that arrive while a request is in flight are sent together with the next one: a broker processes the requests of a
connection one after the other, and each of these waits for a commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import ottla
from ottla.broker.blocking_jobs import resolve
from ottla.broker.endpoints import Endpoint
from ottla.net.apis import open_connection
from ottla.net.connection import Address, Connection
from ottla.net.errors import ClientError, ConnectionLostError
from ottla.net.security import NO_SECURITY, ConnectionSecurity

log = logging.getLogger("ottla.transactions")

CONNECT_TIMEOUT_MS = 2000
REPLY_TIMEOUT_MS = 40_000
"""Longer than a broker takes at most to reply (`api/write_txn_markers`)."""
TOGETHER_MAX = 500

ItemT = TypeVar("ItemT")
OutcomeT = TypeVar("OutcomeT")
Exchange = Callable[[Connection, Sequence[ItemT]], Awaitable[Sequence[OutcomeT]]]
"""Sends one request with all items and returns their outcomes in order. Raises ClientError."""


class PeerAddresses(NamedTuple):
    """Finds other brokers."""

    node_id: int
    """The id of this broker."""
    address_of: Callable[[int], Endpoint | None]
    """Returns the address of a live broker."""
    security: ConnectionSecurity = NO_SECURITY


class Peers(Generic[ItemT, OutcomeT]):
    """Connections to all other brokers, for one purpose."""

    def __init__(
        self, addresses: PeerAddresses, exchange: Exchange[ItemT, OutcomeT], *, purpose: str = "transactions"
    ) -> None:
        self.node_id = addresses.node_id
        self._address_of = addresses.address_of
        self._security = addresses.security
        self._purpose = purpose
        self._exchange = exchange
        self._peers: dict[int, Peer[ItemT, OutcomeT]] = {}
        self._is_stopped = False

    async def ask(self, broker_id: int, item: ItemT) -> OutcomeT | None:
        """Sends an item to a broker and returns its outcome, or None if the broker could not be reached or did not
        reply. It may have executed the request even so."""
        if self._is_stopped:
            return None
        peer = self._peers.get(broker_id)
        if peer is None:
            client_id = f"ottla-{self._purpose}-{self.node_id}"
            peer = self._peers[broker_id] = Peer(
                partial(self._address, broker_id), client_id, self._exchange, self._security
            )
        return await peer.ask(item)

    def stop(self) -> None:
        """Disconnects from all brokers. Queued items and later ones get None."""
        self._is_stopped = True
        for peer in self._peers.values():
            peer.stop()

    def _address(self, broker_id: int) -> Address | None:
        found = self._address_of(broker_id)
        return None if found is None else Address(*found)


class Peer(Generic[ItemT, OutcomeT]):
    """The connection to one broker, with its queue of items."""

    def __init__(
        self,
        address: Callable[[], Address | None],
        client_id: str,
        exchange: Exchange[ItemT, OutcomeT],
        security: ConnectionSecurity = NO_SECURITY,
    ) -> None:
        self._security = security
        self._address = address
        self._client_id = client_id
        self._exchange = exchange
        self._queue: list[tuple[ItemT, asyncio.Future[OutcomeT | None]]] = []
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    def ask(self, item: ItemT) -> asyncio.Future[OutcomeT | None]:
        """Queues an item and returns a future of its outcome."""
        outcome: asyncio.Future[OutcomeT | None] = asyncio.get_running_loop().create_future()
        self._queue.append((item, outcome))
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        return outcome

    def stop(self) -> None:
        """Disconnects. Queued items get None."""
        if self._task is not None:
            self._task.cancel()
        self._disconnect()
        waiting, self._queue = self._queue, []
        for _, outcome in waiting:
            resolve(outcome, None)

    async def _run(self) -> None:
        try:
            while self._queue:
                together, self._queue = self._queue[:TOGETHER_MAX], self._queue[TOGETHER_MAX:]
                outcomes: Sequence[OutcomeT | None] = [None] * len(together)
                try:
                    outcomes = await self._ask([item for item, _ in together])
                finally:
                    for (_, waiting), outcome in zip(together, outcomes, strict=True):
                        resolve(waiting, outcome)
        finally:
            self._task = None

    async def _ask(self, items: list[ItemT]) -> Sequence[OutcomeT | None]:
        address = self._address()
        try:
            connection = await self._connect(address)
            if connection is None:
                return [None] * len(items)
            return await self._exchange(connection, items)
        except (ClientError, OSError) as error:
            log.debug("asking %s: %s", address, error)
            self._disconnect()
            return [None] * len(items)

    async def _connect(self, address: Address | None) -> Connection | None:
        connection = self._connection
        if connection is not None and (not connection.is_open or connection.address != address):
            self._disconnect()
        if self._connection is None and address is not None:
            self._connection = await open_connection(
                address,
                client_id=self._client_id,
                software_version=ottla.__version__,
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
                request_timeout_ms=REPLY_TIMEOUT_MS,
                security=self._security,
            )
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end(ConnectionLostError("reconnecting"))
