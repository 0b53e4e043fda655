"""Serves `GET /metrics` over HTTP/1.1: one page, one request per connection.

Clients cannot harm the broker: request size and the number of connections are limited, and slow readers are
disconnected after a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from ottla.broker.metrics.page import CONTENT_TYPE

log = logging.getLogger("ottla.metrics")

PATH = "/metrics"
METHODS = ("GET", "HEAD")
HEAD_BYTES_MAX = 8 * 1024
CONNECTIONS_MAX = 16
REQUEST_TIMEOUT_S = 10.0
REPLY_TIMEOUT_S = 30.0
LINGER_S = 1.0
"""How long input from the client is still read and discarded. Closing earlier could destroy the reply in transit."""
LINGER_BYTES_MAX = 1024 * 1024

Render = Callable[[], Awaitable[list[bytes]]]
"""Renders the page in parts, which are sent one after another."""


class Request(NamedTuple):
    """The parsed request line."""

    method: str
    path: str


class Reply(NamedTuple):
    """An HTTP response."""

    status: HTTPStatus
    body: list[bytes]
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[str, ...] = ()


class MetricsEndpoint:
    """An HTTP server on sockets that already listen. It serves from `start` to `close`."""

    def __init__(self, sockets: list[socket.socket], render: Render) -> None:
        self._sockets = sockets
        self._render = render
        self._rendering = asyncio.Lock()
        self._starting: asyncio.Future[None] | None = None
        self._servers: list[asyncio.Server] = []
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.host, self.port = sockets[0].getsockname()[:2]

    @property
    def url(self) -> str:
        """The address of the page; an IPv6 host is in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{PATH}"

    @property
    def connection_count(self) -> int:
        """The number of connections that are being served."""
        return len(self._serving)

    def start(self) -> None:
        """Starts without waiting, so that no other start or stop can interleave."""
        self._starting = asyncio.ensure_future(self._accept())

    async def _accept(self) -> None:
        for each in self._sockets:
            server = await asyncio.start_server(self._on_connected, sock=each, limit=HEAD_BYTES_MAX)
            self._servers.append(server)

    def close(self) -> None:
        """Closes at once, without replying to pending requests."""
        if self._starting is not None:
            self._starting.cancel()
        for server in self._servers:
            server.close()
        for task, writer in self._serving.items():
            task.cancel()
            writer.transport.abort()

    def _on_connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving[task] = writer
        task.add_done_callback(self._on_served)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        self._serving.pop(task).transport.abort()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a metrics request failed", exc_info=error)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Ignore clients that disconnect or exceed a timeout.
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await _read_request(reader)
            if request is None:
                return
            reply = request if isinstance(request, Reply) else await self._answer(request)
            writer.transport.set_write_buffer_limits(high=0)
            has_body = isinstance(request, Reply) or request.method != "HEAD"
            writer.writelines([_head_of(reply), *(reply.body if has_body else ())])
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await writer.drain()
            await _linger(reader, writer)

    async def _answer(self, request: Request) -> Reply:
        if request.path != PATH:
            return _plain(HTTPStatus.NOT_FOUND, f"Not found: this server serves only {PATH}.")
        if request.method not in METHODS:
            return _plain(
                HTTPStatus.METHOD_NOT_ALLOWED, "Method not allowed: use GET or HEAD.", f"Allow: {', '.join(METHODS)}"
            )
        try:
            async with self._rendering:  # render one page at a time, however many clients ask
                body = await self._render()
        except Exception:
            log.exception("could not render the metrics page")
            return _plain(
                HTTPStatus.INTERNAL_SERVER_ERROR, "The metrics page could not be rendered; see the broker's log."
            )
        return Reply(HTTPStatus.OK, body, CONTENT_TYPE)


async def _read_request(reader: asyncio.StreamReader) -> Request | Reply | None:
    """Reads a request. Returns None if the client left without one, or a reply that rejects an invalid one."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        return _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request headers are too long.")
    return parse_head(head)


def parse_head(head: bytes) -> Request | Reply:
    """Parses the head of a request. Returns a reply that rejects it if it is invalid."""
    first, *rest = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[0].isalpha() or not parts[0].isupper():
        return _plain(HTTPStatus.BAD_REQUEST, "This is not an HTTP request.")
    method, target, version = parts
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        return _plain(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Only HTTP/1.1 is supported.")
    if version == "HTTP/1.1" and not any(line.lower().startswith("host:") for line in rest):
        return _plain(HTTPStatus.BAD_REQUEST, "The Host header is missing.")
    try:
        path = urlsplit(target).path
    except ValueError:
        return _plain(HTTPStatus.BAD_REQUEST, "The request target is invalid.")
    return Request(method, path)


def _plain(status: HTTPStatus, sentence: str, *headers: str) -> Reply:
    return Reply(status, [f"{sentence}\n".encode()], headers=headers)


def _head_of(reply: Reply) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {sum(map(len, reply.body))}",
        "Connection: close",
        *reply.headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write_eof()
    left_bytes = LINGER_BYTES_MAX
    async with asyncio.timeout(LINGER_S):
        while left_bytes > 0 and (dropped := await reader.read(HEAD_BYTES_MAX)):
            left_bytes -= len(dropped)
