"""One connection: frames of every size, order, timeouts, and servers that are not brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ottla.client.brokers import Brokers, parse_bootstrap
from ottla.client.errors import (
    ConnectionLostError,
    NoBrokerError,
    RequestTimedOutError,
    UnsupportedByBrokerError,
)
from ottla.net.apis import negotiate
from ottla.net.connection import Address, Connection
from ottla.net.frames import FrameReader

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
API_KEY, VERSION = 18, 0


@asynccontextmanager
async def connected(serve: Serve, request_timeout_ms: int = 5000) -> AsyncIterator[Connection]:
    """Connects to a server with the given behaviour."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    connection = await Connection.open(
        address, client_id="test", timeout_ms=5000, request_timeout_ms=request_timeout_ms
    )
    try:
        yield connection
    finally:
        connection.end()
        await connection.wait_ended()
        server.close()
        await asyncio.sleep(0.01)  # lets the server's task see the end of its connection


async def next_request(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Returns the correlation id and the whole frame."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    frame = await reader.readexactly(size)
    return int.from_bytes(frame[4:8], "big"), frame


def reply(correlation_id: int, body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body


async def test_requests_are_pipelined_and_answered_in_order() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = [await next_request(reader) for _ in range(3)]
        for correlation_id, frame in asked:
            writer.write(reply(correlation_id, frame[-1:]))
        await reader.read()

    async with connected(serve) as connection:
        answers = [connection.request(API_KEY, VERSION, [b"%d" % number], what="test") for number in range(3)]
        assert connection.in_flight == 3
        assert [bytes(await answer) for answer in answers] == [b"0", b"1", b"2"]
        assert connection.in_flight == 0


@pytest.mark.parametrize("size", [0, 1, 65531, 65532, 65533, 200_000, 3_000_000])
async def test_replies_of_every_size(size: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            correlation_id, _ = await next_request(reader)
            writer.write(reply(correlation_id, bytes(range(256)) * (size // 256) + bytes(size % 256)))
        await reader.read()

    async with connected(serve) as connection:
        answers = [connection.request(API_KEY, VERSION, [b"x"], what="test") for _ in range(2)]
        for answer in answers:
            body = await answer
            assert len(body) == size
            assert bytes(body[: size // 256 * 256]) == bytes(range(256)) * (size // 256)


async def test_a_reply_in_small_pieces() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        correlation_id, _ = await next_request(reader)
        for byte in reply(correlation_id, b"hello"):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        await reader.read()

    async with connected(serve) as connection:
        assert bytes(await connection.request(API_KEY, VERSION, [], what="test")) == b"hello"


async def test_silence_ends_the_connection_and_everything_that_waits() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with connected(serve) as connection:
        slow = connection.request(API_KEY, VERSION, [], what="something slow", timeout_ms=30_000)
        with pytest.raises(RequestTimedOutError, match="something quick: the broker at 127"):
            await connection.request(API_KEY, VERSION, [], what="something quick", timeout_ms=20)
        with pytest.raises(RequestTimedOutError):
            await slow
        assert not connection.is_open
        with pytest.raises(RequestTimedOutError):
            await connection.request(API_KEY, VERSION, [], what="later")


async def test_a_server_that_hangs_up() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next_request(reader)

    async with connected(serve) as connection:
        with pytest.raises(ConnectionLostError, match="closed the connection"):
            await connection.request(API_KEY, VERSION, [], what="test")


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", reply(99, b"x"), b"\x00\x00\x00\x01x", b"\xff\xff\xff\xff"],
    ids=["http", "wrong correlation id", "too short", "negative size"],
)
async def test_a_server_that_is_no_broker(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next_request(reader)
        writer.write(answer)
        await reader.read()

    async with connected(serve) as connection:
        with pytest.raises(ConnectionLostError, match="does not speak the Kafka protocol"):
            await connection.request(API_KEY, VERSION, [], what="test")


async def test_versions_that_have_nothing_in_common() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with connected(serve) as connection:
        connection.versions = {1: (4, 11), 3: (0, 20)}
        assert connection.version_for(3, (10, 13), "Metadata") == 13
        with pytest.raises(UnsupportedByBrokerError, match="supports Fetch v4 to v11, this client v12 to v17"):
            connection.version_for(1, (12, 17), "Fetch")
        with pytest.raises(UnsupportedByBrokerError, match="does not support the Produce API"):
            connection.version_for(0, (9, 13), "Produce")


async def test_nobody_listens() -> None:
    brokers = Brokers("127.0.0.1:1", client_id="test", connect_timeout_ms=1000, request_timeout_ms=1000)
    with pytest.raises(NoBrokerError) as failure:
        await brokers.any_connection()
    expected = "no broker answered at 127.0.0.1:1: connection refused. Is `ottla up` running?"
    assert str(failure.value) == expected
    await brokers.close()


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost", [Address("localhost", 9092)]),
        ("a:1, b:2 ,", [Address("a", 1), Address("b", 2)]),
        (["a:1", "b"], [Address("a", 1), Address("b", 9092)]),
        ("[::1]:5", [Address("::1", 5)]),
        ("[::1]", [Address("::1", 9092)]),
        ("::1", [Address("::1", 9092)]),
    ],
)
def test_bootstrap_servers(text: str | list[str], addresses: list[Address]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize("text", ["", " , ", "host:port", "host:0", "host:70000"])
def test_what_is_no_bootstrap_server(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port"):
        parse_bootstrap(text)


class Collector(FrameReader):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []
        self.damage: str | None = None

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))

    def stream_damaged(self, reason: str) -> None:
        self.damage = reason

    def feed(self, data: bytes, step: int) -> None:
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            while piece:
                buffer = self.get_buffer(-1)
                taken = piece[: len(buffer)]
                buffer[: len(taken)] = taken
                self.buffer_updated(len(taken))
                piece = piece[len(taken) :]


@pytest.mark.parametrize("step", [1, 3, 64 * 1024, 1 << 20])
def test_frames_are_cut_wherever_the_pieces_end(step: int) -> None:
    sizes = [4, 5, 100, 65_532, 65_536, 70_000, 4, 30_000, 40_000]
    frames = [bytes([index]) * size for index, size in enumerate(sizes)]
    collector = Collector()
    collector.feed(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames), step)
    assert collector.frames == frames
    assert collector.damage is None


async def test_a_broker_that_is_older_than_our_question() -> None:
    """It answers UNSUPPORTED_VERSION in the layout of version 0; then the client asks in version 0."""
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for error, keys in ((35, b"\0\0\0\0"), (0, b"\0\0\0\x01" + b"\0\x03" + b"\0\0" + b"\0\x0c")):
            correlation_id, frame = await next_request(reader)
            asked.append(int.from_bytes(frame[2:4], "big"))
            writer.write(reply(correlation_id, error.to_bytes(2, "big") + keys))
        await reader.read()

    async with connected(serve) as connection:
        await negotiate(connection, "1.0")
        assert connection.versions == {3: (0, 12)}
    assert asked == [4, 0]
