"""The small HTTP server: its replies, and its protection against misbehaving clients."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ottla.broker.metrics import endpoint as endpoint_module
from ottla.broker.metrics.endpoint import CONNECTIONS_MAX, HEAD_BYTES_MAX, MetricsEndpoint, Reply, Request, parse_head
from ottla.broker.metrics.service import MetricsAddressError, MetricsService
from ottla.broker.server.listener import bind

BODY = b"ottla_up 1\n"


class Page:
    def __init__(self) -> None:
        self.body = BODY
        self.failure: Exception | None = None
        self.asked = 0

    async def render(self) -> list[bytes]:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return [self.body[:3], self.body[3:]]


@asynccontextmanager
async def serving(page: Page) -> AsyncIterator[MetricsEndpoint]:
    endpoint = MetricsEndpoint(bind("127.0.0.1", 0), page.render)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.close()


Answer = tuple[int, bytes, dict[str, str]]


async def ask(
    endpoint: MetricsEndpoint, method: str = "GET", path: str = "/metrics", body: bytes | None = None
) -> Answer:
    def call() -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
        connection.request(method, path, body=body)
        reply = connection.getresponse()
        return reply.status, reply.read(), dict(reply.getheaders())

    return await asyncio.to_thread(call)


async def send(endpoint: MetricsEndpoint, data: bytes) -> bytes:
    """Returns all bytes received until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


async def test_a_page_and_its_head() -> None:
    async with serving(Page()) as endpoint:
        status, body, headers = await ask(endpoint)
        assert (status, body) == (200, BODY)
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        status, body, head_headers = await ask(endpoint, "HEAD")
        assert (status, body) == (200, b"")
        assert head_headers == headers


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/metrics?name=x", 200),
        ("GET", "http://example/metrics", 200),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
        ("HEAD", "/other", 404),
    ],
)
async def test_what_is_there_and_what_is_not(method: str, path: str, expected: int) -> None:
    async with serving(Page()) as endpoint:
        status, _, headers = await ask(endpoint, method, path)
        assert status == expected
        assert ("Allow" in headers) == (expected == 405)


async def test_a_client_that_sends_more_than_it_should_still_gets_its_answer() -> None:
    async with serving(Page()) as endpoint:
        status, _, _ = await ask(endpoint, "POST", "/metrics", b"x" * 900_000)
        assert status == 405


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"\x00\x00\x00\x1f\x00\x12\x00\x03\r\n\r\n", 400),
        (b"get /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET http://[bad/metrics HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 3 * HEAD_BYTES_MAX + b"\r\n\r\n", 431),
    ],
)
async def test_requests_that_are_none(data: bytes, status: int) -> None:
    async with serving(Page()) as endpoint:
        reply = await send(endpoint, data)
        assert reply.startswith(f"HTTP/1.1 {status} ".encode())
        assert (await ask(endpoint))[0] == 200, "and it serves the next one"


def test_a_head_is_parsed_or_refused() -> None:
    assert parse_head(b"GET /metrics HTTP/1.1\r\nHOST: x\r\n\r\n") == Request("GET", "/metrics")
    assert isinstance(parse_head(b"\r\n\r\n"), Reply)


async def test_a_page_that_fails_is_an_error_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    page = Page()
    async with serving(page) as endpoint:
        page.failure = RuntimeError("a bug")
        status, body, _ = await ask(endpoint)
        assert status == 500
        assert b"a bug" not in body
        assert "a bug" in caplog.text
        page.failure = None
        assert (await ask(endpoint))[0] == 200


async def test_clients_that_say_nothing_are_few_and_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "REQUEST_TIMEOUT_S", 0.2)
    page, most = Page(), 0
    async with serving(page) as endpoint:
        opened = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(CONNECTIONS_MAX + 30)]
        ends = []
        for reader, _ in opened:
            most = max(most, endpoint.connection_count)
            ends.append(await asyncio.wait_for(_until_closed(reader), 10))
        assert 0 < most <= CONNECTIONS_MAX
        assert ends == [b""] * len(opened)
        assert (await ask(endpoint))[0] == 200
        for _, writer in opened:
            writer.close()
    assert page.asked == 1


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_a_client_that_does_not_read_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "REPLY_TIMEOUT_S", 0.2)
    page = Page()
    page.body = bytes(64 << 20)
    async with serving(page) as endpoint:
        _, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.transport.pause_reading()  # type: ignore[attr-defined] # a transport that reads
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        while not page.asked or endpoint.connection_count:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        writer.transport.abort()
        page.body = BODY
        assert (await ask(endpoint))[1] == BODY


async def test_it_ends_at_once_whoever_is_connected() -> None:
    page = Page()
    async with serving(page) as endpoint:
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        while not endpoint.connection_count:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        endpoint.close()
        assert await asyncio.wait_for(_until_closed(reader), 10) == b""
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.close()


def test_a_busy_port_has_a_sentence() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(MetricsAddressError, match=f"127.0.0.1:{port} is already in use.*--metrics-port"):
            MetricsService("127.0.0.1", port)
    with pytest.raises(MetricsAddressError, match="no such address"):
        MetricsService("203.0.113.1", 0)
