"""The network server: accepts connections, holds their shared state, and shuts down without losing a reply."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Iterator
from functools import partial

from ottla.broker.endpoints import ClientAddress
from ottla.broker.server.connection import Connection
from ottla.broker.server.frames import ReceiveMemory
from ottla.broker.server.limits import Limits, QuietLog, RequestMemory
from ottla.broker.server.listener import Listener
from ottla.broker.server.listener_kind import PLAIN, ListenerKind
from ottla.broker.server.port import RequestHandler
from ottla.broker.server.server_context import ServerContext
from ottla.broker.server.timeout_wheel import TimeoutWheel
from ottla.broker.server.unauthenticated import UnauthenticatedConnections
from ottla.net.tls_failures import describe_tls_failure
from ottla.ports import Allocate
from ottla.protocol.model.broker_config import BrokerConfig
from ottla.protocol.model.x509 import Certificate

log = logging.getLogger("ottla.server")

LINGER_S = 0.5
"""How long an answered client may take to close its half of the connection when the server stops."""
DESCRIPTORS_KEPT_FREE = 256
_LOOK_AGAIN_S = 0.005


class Server:
    """Listens for Kafka clients and serves their connections."""

    def __init__(self, handler: RequestHandler, config: BrokerConfig, allocate: Allocate = bytearray) -> None:
        self._handler = handler
        self._limits = Limits.of(config)
        self._receive_memory = ReceiveMemory(allocate)
        self._accepting: set[asyncio.Task[None]] = set()
        self._handshaking: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._kinds: list[ListenerKind] = []
        self._serving: ServerContext
        self.accepted_count = 0
        self.turned_away_count = 0
        self.failed_handshake_count = 0

    async def start(self, host: str, port: int, kind: ListenerKind = PLAIN) -> tuple[str, int]:
        """Listens, and returns the address with the actual port.

        Raises OSError, with a readable message, if the address is not available.
        """
        loop = asyncio.get_running_loop()
        quiet_log = QuietLog(loop.time)
        self._serving = ServerContext(
            handler=self._handler,
            limits=self._limits,
            loop=loop,
            receive_memory=self._receive_memory,
            request_memory=RequestMemory(self._limits, loop.call_soon),
            wheel=TimeoutWheel(loop, self._limits.shortest_timeout_ms),
            quiet_log=quiet_log,
            unauthenticated=UnauthenticatedConnections(loop, self._limits),
        )
        self._listener = Listener(self._on_accepted, quiet_log)
        self._kinds.append(kind)
        return host, self._listener.open(host, port, kind)

    def listen_also(self, host: str, port: int, kind: ListenerKind = PLAIN) -> int:
        """Listens on one more address and returns its port. Call it after `start`."""
        assert self._listener is not None, "the server was not started"
        self._kinds.append(kind)
        return self._listener.open(host, port, kind)

    @property
    def connection_count(self) -> int:
        """Number of open connections, including those that are still being set up."""
        return len(self._serving.connections)

    @property
    def inflight_count(self) -> int:
        """Requests without a reply, over all connections."""
        return sum(connection.inflight_count for connection in self._serving.connections)

    def certificates(self) -> Iterator[tuple[str, Certificate]]:
        """Iterates over the certificates of the listeners with TLS, by the names of the listeners."""
        for kind in self._kinds:
            if kind.tls is not None and kind.tls.certificate is not None:
                yield kind.name, kind.tls.certificate

    @property
    def unauthenticated_count(self) -> int:
        """Connections that are in a TLS handshake or have not authenticated yet."""
        return len(self._serving.unauthenticated)

    @property
    def buffered_bytes(self) -> int:
        """Size of unanswered and incomplete requests."""
        return self._serving.request_memory.used_bytes

    def _on_accepted(self, accepted: socket.socket, address: tuple[str, int], kind: ListenerKind) -> None:
        serving = self._serving
        peer = ClientAddress(*address, kind.name)
        full = self._why_full(accepted)
        if full is not None:
            accepted.close()
            self.turned_away_count += 1
            serving.quiet_log.warning("connections", f"peer {peer} was turned away: {full}")
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.accepted_count += 1
        connection = Connection(serving, peer, is_plain=kind.is_plain)
        serving.connections[connection] = None
        task = serving.loop.create_task(self._connect(accepted, connection, kind))
        if not kind.is_plain:
            self._handshaking.add(task)
            task.add_done_callback(self._handshaking.discard)
            serving.unauthenticated.add(connection, partial(self._end_handshake, connection, task))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    def _why_full(self, accepted: socket.socket) -> str | None:
        """Returns the reason for turning a connection away, if any. The last descriptors are reserved for the log:
        connections must never keep it from opening a file. A new descriptor is the lowest free number, so it tells how
        many are in use."""
        if len(self._serving.connections) >= self._limits.connections_max:
            return f"{self._limits.connections_max} connections are open (max.connections)"
        descriptors_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        kept_free = min(DESCRIPTORS_KEPT_FREE, descriptors_max // 8)
        if descriptors_max != resource.RLIM_INFINITY and accepted.fileno() >= descriptors_max - kept_free:
            return f"of {descriptors_max} file descriptors, the last {kept_free} are not for connections (ulimit -n)"
        return None

    async def _connect(self, accepted: socket.socket, connection: Connection, kind: ListenerKind) -> None:
        loop = self._serving.loop
        try:
            if kind.tls is None:
                await loop.connect_accepted_socket(lambda: connection, accepted)
            else:
                await loop.connect_accepted_socket(
                    lambda: connection,
                    accepted,
                    ssl=kind.tls.context(),
                    ssl_handshake_timeout=self._limits.authentication_timeout_ms / 1000,
                    ssl_shutdown_timeout=LINGER_S,
                )
        except OSError as error:
            if kind.tls is None:
                log.debug("peer %s left before it was served: %s", connection.peer, error)
            else:
                self.failed_handshake_count += 1
                self._serving.quiet_log.warning("handshake", f"peer {connection.peer} {describe_tls_failure(error)}")
            self._forget(accepted, connection)
        except asyncio.CancelledError:
            self._forget(accepted, connection)

    def _forget(self, accepted: socket.socket, connection: Connection) -> None:
        self._serving.connections.pop(connection, None)
        self._serving.unauthenticated.discard(connection)
        accepted.close()

    def _end_handshake(self, connection: Connection, task: asyncio.Task[None], reason: str) -> None:
        self.failed_handshake_count += 1
        self._serving.quiet_log.warning("handshake", f"peer {connection.peer} {reason}")
        task.cancel()

    async def stop(self, grace_s: float) -> None:
        """Accepts no more connections or requests, answers pending ones within the grace period, then closes."""
        if self._listener is None:
            return
        self._listener.close()
        self._listener = None
        for handshake in self._handshaking:
            handshake.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        serving = self._serving
        for connection in list(serving.connections):
            connection.begin_stop()
        self._handler.begin_shutdown()
        await self._wait_until(lambda: all(connection.is_answered for connection in serving.connections), grace_s)
        await self._wait_until(lambda: not serving.connections, min(grace_s, LINGER_S))
        await self._close_all()

    async def _wait_until(self, is_reached: Callable[[], bool], timeout_s: float) -> None:
        loop = self._serving.loop
        deadline_s = loop.time() + timeout_s
        while not is_reached() and loop.time() < deadline_s:  # noqa: ASYNC110 - transports do not notify when empty
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _close_all(self) -> None:
        serving = self._serving
        unanswered = sum(not connection.is_answered for connection in serving.connections)
        if unanswered:
            log.warning("%d connections are closed with requests that were not answered in time", unanswered)
        for connection in list(serving.connections):
            connection.abort()
        for task in list(serving.coroutines):
            task.cancel()
        await self._wait_until(lambda: not serving.connections, LINGER_S)
        await asyncio.gather(*serving.coroutines, return_exceptions=True)
        serving.wheel.stop()
        serving.unauthenticated.stop()
