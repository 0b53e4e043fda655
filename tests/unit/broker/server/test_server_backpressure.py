"""Back-pressure stops the connection that causes it, and never the ones that relieve it."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from ottla.broker.partition.backlog import Backlog, PartitionBacklog
from ottla.broker.partition.backlog_limit import LEAST_SHARE
from ottla.broker.server.server import Server
from ottla.sim.clock import SimClock
from tests.support.server_client import (
    COROUTINE,
    ECHO,
    LATER,
    Client,
    Stub,
    StubConnection,
    config_of,
    on_uvloop,
    request,
    settled,
    until,
)

PRODUCE = b"\0"
"""The API key of Produce, in the first two bytes."""
FROM_BROKER = b"F"
MIB = 1 << 20
LIMIT = 1000


class PacedStub(Stub):
    """Produce requests wait for a backlog, then for their acknowledgement."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SimClock()
        self.backlog = Backlog(self.clock, LIMIT * LEAST_SHARE)
        self.partition = PartitionBacklog(self.backlog)

    def handle(self, connection: StubConnection, frame: memoryview) -> Any:
        kind = bytes(frame[:1])
        if kind == PRODUCE:
            if self.backlog.is_full:
                return self.backlog
            number = struct.unpack_from(">i", frame, 4)[0]
            self.seen.append(number)
            self.partition.add(number + 1, LIMIT)
            self.futures[number] = asyncio.get_running_loop().create_future()
            return self.futures[number]
        if kind == FROM_BROKER:
            connection.is_of_broker = True
            return [frame]
        return super().handle(connection, frame)

    def drain(self, number: int) -> None:
        """Acknowledges everything up to this request."""
        self.partition.release(number + 1)
        self.clock.advance(1)


class Serving:
    def __init__(self, **settings: int) -> None:
        self.stub = PacedStub()
        self.server = Server(self.stub, config_of(**settings))
        self.port = 0

    async def __aenter__(self) -> Serving:
        _, self.port = await self.server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(0)

    async def connect(self) -> Client:
        return await Client.connect(self.port)

    async def fill(self) -> list[Client]:
        """Clients whose large requests use up the memory for requests."""
        clients = [await self.connect() for _ in range(7)]
        for number, client in enumerate(clients):
            client.send(request(COROUTINE, number, bytes(160_000)))
        await until(lambda: self.server.buffered_bytes >= MIB)
        return clients


@on_uvloop
async def test_small_requests_are_served_while_memory_is_used_up() -> None:
    async with Serving(queued_max_request_bytes=MIB) as serving:
        await serving.fill()
        neighbour = await serving.connect()
        for number in range(100, 150):
            neighbour.send(request(ECHO, number, bytes(10_000)))
        assert await neighbour.reply_numbers(50) == list(range(100, 150))
        stranger = await serving.connect()
        stranger.send(request(ECHO, 1))
        assert await stranger.reply_numbers(1) == [1]


@on_uvloop
async def test_requests_without_records_may_be_larger() -> None:
    """A fetch that names thousands of partitions."""
    async with Serving(queued_max_request_bytes=MIB) as serving:
        await serving.fill()
        follower = await serving.connect()
        follower.send(request(ECHO, 1, bytes(300_000)))
        assert await follower.reply_numbers(1) == [1]


@on_uvloop
async def test_a_large_produce_request_waits_for_memory() -> None:
    async with Serving(queued_max_request_bytes=MIB) as serving:
        filling = await serving.fill()
        producer = await serving.connect()
        producer.send(request(PRODUCE, 100, bytes(300_000)))
        await settled()
        assert 100 not in serving.stub.futures
        for number, client in enumerate(filling):
            serving.stub.gates[number].set()
            assert await client.reply_numbers(1) == [number]
        await serving.stub.has_future(100)


@on_uvloop
async def test_another_broker_never_waits_for_memory() -> None:
    async with Serving(queued_max_request_bytes=MIB) as serving:
        await serving.fill()
        broker, client = await serving.connect(), await serving.connect()
        broker.send(request(FROM_BROKER, 1))
        assert await broker.reply_numbers(1) == [1]
        for each in (broker, client):
            each.send(request(ECHO, 50, bytes(2 * MIB)))
        assert await broker.reply_numbers(1) == [50]
        client.send(request(ECHO, 51))
        await settled()
        assert serving.stub.seen.count(50) == 1, "a client's large request was read beyond the limit"


@on_uvloop
async def test_a_client_that_holds_much_waits_for_memory() -> None:
    """Also with requests that carry no records."""
    async with Serving(queued_max_request_bytes=MIB) as serving:
        await serving.fill()
        client = await serving.connect()
        for number in range(100, 200):
            client.send(request(LATER, number, bytes(100_000)))
        await serving.stub.has_future(100)
        await settled()
        assert sum(number >= 100 for number in serving.stub.futures) <= 2


@on_uvloop
async def test_appended_records_do_not_count_as_requests() -> None:
    async with Serving(queued_max_request_bytes=MIB) as serving:
        client = await serving.connect()
        client.send(request(PRODUCE, 0, bytes(2 * MIB)))
        await serving.stub.has_future(0)
        await until(lambda: serving.server.buffered_bytes == 0)


@on_uvloop
async def test_a_full_backlog_stops_producers_alone_and_in_order() -> None:
    async with Serving() as serving:
        stub = serving.stub
        producer, neighbour = await serving.connect(), await serving.connect()
        producer.send(b"".join(request(PRODUCE, number) for number in range(6)) + request(ECHO, 6))
        await stub.has_future(1)
        await settled()
        assert stub.seen == [0, 1]  # the second one exceeded the limit
        neighbour.send(request(ECHO, 100))
        assert await neighbour.reply_numbers(1) == [100]
        for number in range(6):
            stub.drain(number)
            stub.complete(number)
            await settled()
        assert await producer.reply_numbers(7) == list(range(7))
        assert [number for number in stub.seen if number < 100] == list(range(7))
        assert stub.backlog.waits >= 2
        await until(lambda: serving.server.buffered_bytes == 0)


@on_uvloop
async def test_two_producers_take_turns() -> None:
    async with Serving() as serving:
        stub = serving.stub
        first, second = await serving.connect(), await serving.connect()
        first.send(b"".join(request(PRODUCE, number) for number in range(20)))
        await stub.has_future(1)
        second.send(b"".join(request(PRODUCE, number) for number in range(100, 120)))
        await settled()
        for _ in range(30):
            stub.drain(1000)
            await settled()
        assert len([number for number in stub.seen[:12] if number >= 100]) >= 4, stub.seen


@on_uvloop
async def test_a_producer_that_leaves_while_it_waits_is_forgotten() -> None:
    async with Serving() as serving:
        stub = serving.stub
        leaving, staying = await serving.connect(), await serving.connect()
        for client in (leaving, staying):
            client.send(b"".join(request(PRODUCE, number, bytes(1000)) for number in range(3)))
            await settled()
        leaving.close()
        await serving.server.stop(0)
        assert serving.server.buffered_bytes == 0
        stub.drain(10)
        await settled()
        assert len(stub.seen) <= 3
