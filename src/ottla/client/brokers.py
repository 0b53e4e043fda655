"""The connections of one client, by node id: opened on demand and reopened with exponential backoff.

A long poll must not delay other requests on its connection, so each connection has a purpose: fetches from a node use a
different connection than metadata requests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence

from ottla import __version__
from ottla.client.errors import AuthenticationFailedError, ClientClosedError, ClientError, NoBrokerError
from ottla.net.apis import open_connection
from ottla.net.backoff import Backoff
from ottla.net.connection import Address, Connection
from ottla.net.security import NO_SECURITY, ConnectionSecurity
from ottla.protocol.model.addresses import split_address

DEFAULT_PORT = 9092
BACKOFF_MIN_MS = 50
BACKOFF_MAX_MS = 1000
BOOTSTRAP = -1
"""A node id that means any bootstrap server that answers."""


def parse_bootstrap(servers: str | Sequence[str]) -> list[Address]:
    """Parses `"host:port,host:port"` or a list of addresses. IPv6 addresses are in brackets."""
    entries = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = [_parse_address(entry.strip()) for entry in entries if entry.strip()]
    if not addresses:
        raise ValueError("bootstrap_servers names no server; write host:port, for example 127.0.0.1:9092")
    return addresses


def _parse_address(entry: str) -> Address:
    host, port = split_address(entry, DEFAULT_PORT)
    return Address(host, port)


def new_backoff(min_ms: float = BACKOFF_MIN_MS) -> Backoff:
    """Returns the backoff of one sequence of attempts, with jitter, so that clients do not reconnect all at once."""
    return Backoff(min_ms / 1000, BACKOFF_MAX_MS / 1000, jitter=(0.8, 1.2))


class Brokers:
    """All connections of a producer, consumer or admin client."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str,
        connect_timeout_ms: int,
        request_timeout_ms: int,
        security: ConnectionSecurity = NO_SECURITY,
    ) -> None:
        self._security = security
        self._bootstrap = parse_bootstrap(bootstrap_servers)
        self._client_id = client_id
        self._connect_timeout_ms = connect_timeout_ms
        self._request_timeout_ms = request_timeout_ms
        self._nodes: dict[int, Address] = {}
        self._open: dict[tuple[int, str], Connection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[Connection]] = {}
        self._backoffs: dict[Address, Backoff] = {}
        self._not_before_s: dict[Address, float] = {}
        self._closed = False

    @property
    def bootstrap_text(self) -> str:
        """The bootstrap servers as text, for messages."""
        return ",".join(map(str, self._bootstrap))

    def update_nodes(self, nodes: Iterable[tuple[int, Address]]) -> None:
        """Applies new metadata. Connections to a node that moved are closed."""
        self._nodes = dict(nodes)
        for (node_id, purpose), connection in list(self._open.items()):
            if node_id != BOOTSTRAP and self._nodes.get(node_id) != connection.address:
                del self._open[node_id, purpose]
                connection.end()

    def opened(self, node_id: int, purpose: str = "") -> Connection | None:
        """Returns the open connection, or None."""
        connection = self._open.get((node_id, purpose))
        return connection if connection is not None and connection.is_open else None

    async def connection(self, node_id: int, purpose: str = "") -> Connection:
        """Returns a connection, opening one if needed. Waits out the backoff, then tries once. Raises NoBrokerError."""
        found = self.opened(node_id, purpose)
        if found is not None:
            return found
        if self._closed:
            raise ClientClosedError("this client is closed")
        key = (node_id, purpose)
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(self._connect(node_id, purpose))
            task.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(task)

    def _opened(self, key: tuple[int, str], task: asyncio.Task[Connection]) -> None:
        self._opening.pop(key, None)
        if task.cancelled() or task.exception() is not None:
            return
        if self._closed:
            task.result().end()
        else:
            self._open[key] = task.result()

    async def any_connection(self) -> Connection:
        """Returns a connection to any broker: an open one, else to a known node, else to a bootstrap server."""
        for (_, purpose), connection in self._open.items():
            if connection.is_open and purpose == "":
                return connection
        if len(self._nodes) == 0:
            return await self.connection(BOOTSTRAP)
        node_ids = list(self._nodes)
        random.shuffle(node_ids)
        for node_id in [*node_ids[:2], BOOTSTRAP]:
            try:
                return await self.connection(node_id)
            except NoBrokerError as failure:
                last = failure
        raise last

    async def _connect(self, node_id: int, purpose: str) -> Connection:
        if node_id != BOOTSTRAP:
            address = self._nodes.get(node_id)
            if address is None:
                raise NoBrokerError(f"broker {node_id} is not in the cluster's metadata")
            return await self._connect_to(address)
        failure: NoBrokerError | None = None
        for address in random.sample(self._bootstrap, len(self._bootstrap)):
            try:
                return await self._connect_to(address)
            except NoBrokerError as cause:
                failure = cause
        assert failure is not None
        raise failure

    async def _connect_to(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        pause_s = self._not_before_s.get(address, 0.0) - loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        backoff = self._backoffs.setdefault(address, new_backoff())
        try:
            connection = await open_connection(
                address,
                client_id=self._client_id,
                software_version=__version__,
                connect_timeout_ms=self._connect_timeout_ms,
                request_timeout_ms=self._request_timeout_ms,
                security=self._security,
            )
        except (ClientError, OSError) as cause:
            self._not_before_s[address] = loop.time() + backoff.next_s()
            if isinstance(cause, NoBrokerError | AuthenticationFailedError):
                raise
            raise NoBrokerError(f"no broker answered at {address}: {str(cause) or 'timed out'}") from cause
        backoff.reset()
        return connection

    async def close(self) -> None:
        """Closes all connections and refuses new ones."""
        self._closed = True
        await self.disconnect()

    async def disconnect(self) -> None:
        """Closes all connections. Later calls open new ones."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        connections = list(self._open.values())
        self._open.clear()
        for connection in connections:
            connection.end()
        for connection in connections:
            await connection.wait_ended()
