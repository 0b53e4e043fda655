"""One connection to one broker. Requests are pipelined, and replies arrive in the order of the requests.

A late reply ends the connection, because every later reply waits behind it. Callers that wait on a connection that ends
get `ConnectionLostError`: the broker may or may not have executed the request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, cast

from ottla.net.errors import (
    ClientError,
    ConnectionLostError,
    RequestTimedOutError,
    UnsupportedByBrokerError,
    connect_failed,
)
from ottla.net.frames import FrameReader, NotKafkaError
from ottla.net.sasl import authenticate
from ottla.net.security import NO_SECURITY, ConnectionSecurity
from ottla.ports import Allocate
from ottla.protocol.wire.headers import parse_response_header, request_header
from ottla.protocol.wire.primitives import I32, MalformedRequest

Buffers = list[bytes | bytearray | memoryview]

_CORRELATION_WRAPS_AT = 0x7FFFFFFF


@dataclass(slots=True)
class _PendingRequest:
    """A request without a reply so far."""

    api_key: int
    version: int
    correlation_id: int
    deadline_s: float
    what: str
    reply: asyncio.Future[memoryview]


@dataclass(frozen=True, slots=True)
class Address:
    """The host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection(FrameReader):
    """A connection to a broker, opened with `Connection.open`.

        connection = await Connection.open(
            Address("127.0.0.1", 9092), client_id="tool", timeout_ms=10_000, request_timeout_ms=30_000
        )
        reply = await connection.request(api_key, version, [body], what="listing the groups")
        connection.end()

    `versions` and `features` come from the broker's ApiVersions reply.
    """

    def __init__(
        self, address: Address, client_id: str, request_timeout_ms: int, allocate: Allocate = bytearray
    ) -> None:
        super().__init__(allocate)
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        self._client_id = client_id
        self._request_timeout_s = request_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_PendingRequest] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._next_correlation_id = 0
        self._ended: ClientError | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        client_id: str,
        timeout_ms: int,
        request_timeout_ms: int,
        allocate: Allocate = bytearray,
        security: ConnectionSecurity = NO_SECURITY,
    ) -> Connection:
        """Connects. Raises NoBrokerError with the reason on failure. `allocate` provides buffers for large replies."""
        connection = cls(address, client_id, request_timeout_ms, allocate)
        context = security.tls_context()
        encryption: dict[str, Any] = {} if context is None else {"ssl": context, "server_hostname": address.host}
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await connection._loop.create_connection(lambda: connection, address.host, address.port, **encryption)
        except OSError as cause:  # includes TimeoutError
            raise connect_failed(str(address), cause) from cause
        if security.login is not None:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await authenticate(connection, security.login)
            except BaseException:
                connection.end()
                raise
        return connection

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._ended is None

    @property
    def in_flight(self) -> int:
        """The number of requests without a reply."""
        return len(self._waiting)

    def request(
        self, api_key: int, version: int, body: Buffers, *, what: str, timeout_ms: int | None = None
    ) -> asyncio.Future[memoryview]:
        """Sends a request at once. The future resolves to the reply's body, a view of a buffer of its own."""
        reply: asyncio.Future[memoryview] = self._loop.create_future()
        if self._ended is not None:
            reply.set_exception(self._ended)
            return reply
        correlation_id = self._write(api_key, version, body)
        timeout_s = self._request_timeout_s if timeout_ms is None else timeout_ms / 1000
        waiting = _PendingRequest(api_key, version, correlation_id, self._loop.time() + timeout_s, what, reply)
        self._waiting.append(waiting)
        if self._timer is None or waiting.deadline_s < self._timer.when():
            self._arm_timer(waiting.deadline_s)
        return reply

    def send_unanswered(self, api_key: int, version: int, body: Buffers) -> None:
        """Sends a produce request with acks=0, the only request without a reply."""
        if self._ended is not None:
            raise self._ended
        self._write(api_key, version, body)

    def version_for(self, api_key: int, ours: tuple[int, int], name: str) -> int:
        """Returns the highest version that both sides speak. Raises UnsupportedByBrokerError if there is none."""
        theirs = self.versions.get(api_key)
        if theirs is None:
            raise UnsupportedByBrokerError(f"the broker at {self.address} does not support the {name} API")
        version = min(theirs[1], ours[1])
        if version < max(theirs[0], ours[0]):
            raise UnsupportedByBrokerError(
                f"the broker at {self.address} supports {name} v{theirs[0]} to v{theirs[1]}, this client "
                f"v{ours[0]} to v{ours[1]}"
            )
        return version

    def end(self, reason: ClientError | None = None) -> None:
        """Closes the socket and fails all requests without a reply. Idempotent."""
        if self._ended is not None:
            return
        self._ended = reason or ConnectionLostError(f"the connection to {self.address} was closed by this client")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            if not one.reply.done():
                one.reply.set_exception(self._ended)
                one.reply.exception()  # marks it as retrieved, because the caller may no longer await it

    async def wait_ended(self) -> None:
        """Waits until the socket is closed."""
        if self._transport is not None:
            await asyncio.shield(self._gone)

    def _write(self, api_key: int, version: int, body: Buffers) -> int:
        assert self._transport is not None
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & _CORRELATION_WRAPS_AT
        head = request_header(api_key, version, correlation_id, self._client_id)
        size = len(head) + sum([len(part) for part in body])
        self._transport.writelines([I32.pack(size) + head, *body])
        return correlation_id

    def _on_timer(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        first = min(self._waiting, key=lambda waiting: waiting.deadline_s)
        if first.deadline_s <= self._loop.time():
            self.end(RequestTimedOutError(f"{first.what}: the broker at {self.address} did not answer in time"))
        else:
            self._arm_timer(first.deadline_s)

    def _arm_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._on_timer)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not subclass asyncio.Transport

    def frame_received(self, frame: memoryview) -> None:
        if not self._waiting:
            raise NotKafkaError("a response without a request")
        waiting = self._waiting[0]
        try:
            correlation_id, body_at = parse_response_header(waiting.api_key, waiting.version, frame)
        except MalformedRequest as cause:
            raise NotKafkaError(str(cause)) from cause
        if correlation_id != waiting.correlation_id:
            raise NotKafkaError(f"a response to request {correlation_id}, expected {waiting.correlation_id}")
        self._waiting.popleft()
        if not waiting.reply.done():
            waiting.reply.set_result(frame[body_at:])

    def stream_damaged(self, reason: str) -> None:
        self.end(ConnectionLostError(f"the server at {self.address} does not speak the Kafka protocol: {reason}"))

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {exc}" if exc else ""
        self.end(ConnectionLostError(f"the broker at {self.address} closed the connection{why}"))
        if not self._gone.done():
            self._gone.set_result(None)
