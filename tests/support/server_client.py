"""A server with a stub in place of the handlers, and a client that sends frames, for tests of the server.

A request is a kind (one byte), three padding bytes, a number (four bytes) and a payload.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, ParamSpec

import uvloop

from ottla.broker.endpoints import ClientAddress
from ottla.broker.partition.pending_reply import PendingReply
from ottla.broker.server.port import RunReplies
from ottla.broker.server.server import Server
from ottla.protocol.model.broker_config import BrokerConfig, parse_broker_config
from ottla.protocol.wire.primitives import MalformedRequest

ECHO, LATER, COROUTINE, SILENT, BUG, MALFORMED, LARGE = b"E", b"L", b"C", b"S", b"B", b"M", b"R"
PENDING = b"P"
"""Like LATER, with a `PendingReply`, which is how produce and fetch reply, in place of a future."""
LARGE_REPLY = bytes(1024 * 1024)
TEST_TIMEOUT_S = 60

P = ParamSpec("P")


def on_uvloop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs a test on uvloop, the broker's event loop, with a timeout."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(TEST_TIMEOUT_S):
                await test(*args, **kwargs)

        uvloop.run(limited())

    return run


class StubConnection:
    """Passes the requests of one connection to the stub."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self.is_of_broker = False

    def begin(self, transport: asyncio.BaseTransport, rebind: Callable[[bool], None]) -> bool:
        return True

    def end(self) -> None: ...

    def begin_read(self) -> None:
        self._stub.is_reading = True

    def end_read(self) -> None:
        self._stub.is_reading = False

    def handle(self, frame: memoryview) -> Any:
        return self._stub.handle(self, frame)

    def handle_run(self, frames: Sequence[memoryview], at: int, count_max: int) -> tuple[RunReplies | None, int]:
        return self._stub.handle_run(frames, at, count_max)


class Stub:
    """Replies by the request's kind; futures and coroutines wait until the test completes them by number."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.frames: list[memoryview] = []
        self.futures: dict[int, asyncio.Future[Any]] = {}
        self.pending: dict[int, PendingReply[list[Any]]] = {}
        self.gates: dict[int, asyncio.Event] = {}
        self.finished_coroutines: list[int] = []
        self.shutdowns = 0
        self.is_reading = False

    def connect(self, client: ClientAddress) -> StubConnection:
        return StubConnection(self)

    def handle_run(self, frames: Sequence[memoryview], at: int, count_max: int) -> tuple[RunReplies | None, int]:
        return None, 0

    def handle(self, connection: StubConnection, frame: memoryview) -> Any:
        kind, number = bytes(frame[:1]), struct.unpack_from(">i", frame, 4)[0]
        self.seen.append(number)
        if kind == ECHO:
            return [frame]
        if kind == LATER:
            self.futures[number] = asyncio.get_running_loop().create_future()
            return self.futures[number]
        if kind == PENDING:
            self.pending[number] = PendingReply()
            return self.pending[number]
        if kind == COROUTINE:
            self.gates[number] = asyncio.Event()
            return self._wait(number, bytes(frame))
        if kind == LARGE:
            return [bytes(frame[:8]), LARGE_REPLY]
        if kind == MALFORMED:
            raise MalformedRequest("the array is longer than the request")
        if kind == BUG:
            raise ZeroDivisionError("a bug in a handler")
        return None

    async def _wait(self, number: int, reply: bytes) -> list[bytes]:
        await self.gates[number].wait()
        self.finished_coroutines.append(number)
        return [reply]

    async def has_future(self, number: int) -> None:
        await until(lambda: number in self.futures)

    async def has_pending(self, number: int) -> None:
        await until(lambda: number in self.pending)

    def complete(self, number: int) -> None:
        reply = [b"L\0\0\0", struct.pack(">i", number)]
        if number in self.pending:
            self.pending[number].complete(reply)
        else:
            self.futures[number].set_result(reply)

    def begin_shutdown(self) -> None:
        self.shutdowns += 1


def config_of(**settings: int) -> BrokerConfig:
    """Builds a configuration from Kafka's names, with `_` for `.`."""
    config = parse_broker_config({name.replace("_", "."): str(value) for name, value in settings.items()})
    assert isinstance(config, BrokerConfig), config
    return config


@contextlib.asynccontextmanager
async def serving(stub: Stub, **settings: int) -> AsyncIterator[tuple[Server, int]]:
    server = Server(stub, config_of(**settings))
    _, port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop(0)


def request(kind: bytes, number: int, payload: bytes = b"") -> bytes:
    return struct.pack(">i1s3xi", 8 + len(payload), kind, number) + payload


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def sent(self) -> None:
        await self._writer.drain()

    async def reply(self) -> bytes:
        size = struct.unpack(">i", await self._reader.readexactly(4))[0]
        return await self._reader.readexactly(size)

    async def reply_numbers(self, count: int) -> list[int]:
        return [struct.unpack_from(">i", await self.reply(), 4)[0] for _ in range(count)]

    async def is_closed_by_server(self) -> bool:
        """Waits for end of file; the test's timeout applies if it never arrives."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(1 << 16):
                pass
        return True

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        self._writer.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds; the test's timeout applies if it never does."""
    while not condition():  # noqa: ASYNC110 - the conditions read plain attributes
        await asyncio.sleep(0.002)


async def settled(turns: int = 20) -> None:
    """Lets the loop run everything that is ready, to show that something does not happen."""
    for _ in range(turns):
        await asyncio.sleep(0.002)


async def answers(port: int) -> bool:
    """Returns whether the server answers a new client."""
    client = await Client.connect(port)
    client.send(request(ECHO, 7))
    answered: Awaitable[list[int]] = client.reply_numbers(1)
    try:
        return await answered == [7]
    finally:
        client.close()
