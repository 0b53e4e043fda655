"""Group members on real connections: one that is closed while its request waits, and a server that stops."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ottla.broker.api.request_handler import BrokerRequestHandler
from ottla.broker.server.server import Server
from ottla.protocol.model.errors import ErrorCode
from tests.support.group_caller import ClassicMember, grouping
from tests.support.handlers_caller import Caller
from tests.support.server_client import on_uvloop, until

GRACE_S = 600.0
"""As long as the test may last: no test below waits for it."""


class SocketCaller(Caller):
    """Sends its frames through its own connection."""

    def __init__(self, inside: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(inside.broker, inside.disk)
        self._reader = reader
        self._writer = writer

    async def send(self, frame: bytes) -> bytes:
        self._writer.write(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def is_closed(self) -> bool:
        return await self._reader.read() == b""

    def cut(self) -> None:
        self._writer.transport.abort()


class Serving:
    def __init__(self, inside: Caller, server: Server, port: int) -> None:
        self.inside = inside
        self.server = server
        self._port = port

    async def connect(self) -> SocketCaller:
        return SocketCaller(self.inside, *await asyncio.open_connection("127.0.0.1", self._port))

    @property
    def unfinished(self) -> int:
        return len(self.server._serving.coroutines)


@asynccontextmanager
async def serving() -> AsyncIterator[Serving]:
    async with grouping() as inside:
        server = Server(BrokerRequestHandler(inside.broker), inside.broker.config)
        _, port = await server.start("127.0.0.1", 0)
        yield Serving(inside, server, port)
        await server.stop(0)


async def _waiting_join(world: Serving) -> tuple[ClassicMember, SocketCaller, asyncio.Task[Any]]:
    """Creates a group of one member and a second member whose join has to wait."""
    first = ClassicMember(await world.connect())
    await first.enter()
    connection = await world.connect()
    joining = asyncio.create_task(ClassicMember(connection, version=3).join())
    await first.until_rebalance()
    return first, connection, joining


@on_uvloop
async def test_a_member_that_is_cut_off_while_it_joins() -> None:
    """It belongs to the generation until its session ends; its request is dropped when the generation starts."""
    async with serving() as world:
        first, connection, joining = await _waiting_join(world)
        connection.cut()
        await asyncio.gather(joining, return_exceptions=True)
        await until(lambda: world.server.connection_count == 1)
        joined = await first.join()
        assert joined.error_code is ErrorCode.none
        assert len(joined.members) == 2
        await until(lambda: world.unfinished == 0)
        assert world.server.buffered_bytes == 0


@on_uvloop
async def test_a_member_that_is_cut_off_while_it_syncs() -> None:
    async with serving() as world:
        first, connection, joining = await _waiting_join(world)
        second = ClassicMember(connection)
        await first.join()
        joined = await joining
        second.member_id, second.generation = joined.member_id, joined.generation_id
        syncing = asyncio.create_task(second.sync())
        await until(lambda: world.unfinished == 1)
        connection.cut()
        await asyncio.gather(syncing, return_exceptions=True)
        assert (await first.sync({first.member_id: b"1"})).assignment == b"1"
        await until(lambda: world.unfinished == 0)


@on_uvloop
async def test_a_server_that_stops_does_not_wait_for_a_generation() -> None:
    """The member gets NOT_COORDINATOR, and the connection is closed after that."""
    async with serving() as world:
        _, connection, joining = await _waiting_join(world)
        stopping = asyncio.create_task(world.server.stop(GRACE_S))
        assert (await joining).error_code is ErrorCode.not_coordinator
        assert await connection.is_closed()
        await stopping
        assert world.unfinished == 0
