"""Start and stop of a server: its address, and replies to all accepted requests."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct

import pytest

from ottla.broker.server.server import Server
from tests.support.server_client import (
    COROUTINE,
    ECHO,
    LARGE,
    LATER,
    Client,
    Stub,
    answers,
    config_of,
    on_uvloop,
    request,
    serving,
    settled,
    until,
)


@on_uvloop
async def test_a_busy_port_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: another process listens") as raised:
            await Server(Stub(), config_of()).start("127.0.0.1", port)
    assert raised.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
@on_uvloop
async def test_an_address_of_another_machine_is_explained(host: str) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {host}:0: "):
        await Server(Stub(), config_of()).start(host, 0)


@on_uvloop
async def test_all_addresses_of_a_name_share_one_port() -> None:
    stub = Stub()
    server = Server(stub, config_of())
    host, port = await server.start("localhost", 0)
    assert host == "localhost"
    assert await answers(port)
    await server.stop(0)


@on_uvloop
async def test_stop_answers_what_was_accepted() -> None:
    stub = Stub()
    async with serving(stub, ottla_max_inflight_requests_per_connection=3) as (server, port):
        client = await Client.connect(port)
        kinds = [LATER, COROUTINE, ECHO, LATER, LARGE]
        client.send(b"".join(request(kind, number) for number, kind in enumerate(kinds, 1)))
        await until(lambda: 2 in stub.gates)
        stopping = asyncio.create_task(server.stop(60))
        await settled()
        assert stub.shutdowns == 1
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(port)
        client.send(request(ECHO, 6))
        stub.gates[2].set()
        stub.complete(1)
        await until(lambda: 4 in stub.futures)
        stub.complete(4)
        assert await client.reply_numbers(5) == [1, 2, 3, 4, 5]
        assert await client.is_closed_by_server()
        client.close()
        await stopping
        assert stub.seen == [1, 2, 3, 4, 5]


@on_uvloop
async def test_replies_on_their_way_survive_data_that_nobody_will_read() -> None:
    """A socket closed with unread data resets the connection, and the client loses the end of its reply."""
    stub = Stub()
    async with serving(stub) as (server, port):
        loop = asyncio.get_running_loop()
        client = socket.create_connection(("127.0.0.1", port))
        client.setblocking(False)
        await loop.sock_sendall(client, request(LATER, 0) + b"".join(request(LARGE, n) for n in range(1, 9)))
        await until(lambda: len(stub.seen) == 9)
        stopping = asyncio.create_task(server.stop(60))
        await asyncio.sleep(0)
        await loop.sock_sendall(client, b"".join(request(ECHO, number, bytes(50_000)) for number in range(3)))
        stub.complete(0)
        received = bytearray()
        while piece := await loop.sock_recv(client, 1 << 20):
            received += piece
        client.close()
        await stopping
    numbers = []
    while received:
        (size,) = struct.unpack_from(">i", received)
        numbers.append(struct.unpack_from(">i", received, 8)[0])
        assert len(received) >= 4 + size
        del received[: 4 + size]
    assert numbers == list(range(9))


@on_uvloop
async def test_stop_does_not_wait_longer_than_its_grace(caplog: pytest.LogCaptureFixture) -> None:
    stub = Stub()
    async with serving(stub) as (server, port):
        client = await Client.connect(port)
        client.send(request(LATER, 1))
        other = await Client.connect(port)
        other.send(request(COROUTINE, 2))
        await until(lambda: 1 in stub.futures and 2 in stub.gates)
        await server.stop(0.05)
        assert stub.futures[1].cancelled()
        assert stub.finished_coroutines == []
        assert await client.is_closed_by_server()
        assert server.connection_count == 0
    assert "2 connections are closed with requests that were not answered in time" in caplog.text


@on_uvloop
async def test_stop_ends_idle_and_half_open_connections() -> None:
    stub = Stub()
    async with serving(stub) as (server, port):
        idle = await Client.connect(port)
        begun = await Client.connect(port)
        begun.send(b"\0\0\0\x10abc")
        await until(lambda: server.buffered_bytes == 7)
        await server.stop(10)
        assert await idle.is_closed_by_server()
        assert await begun.is_closed_by_server()
        assert server.connection_count == 0
        assert server.buffered_bytes == 0


@on_uvloop
async def test_stop_twice_and_start_again() -> None:
    stub = Stub()
    server = Server(stub, config_of())
    _, port = await server.start("127.0.0.1", 0)
    await server.stop(0)
    await server.stop(0)
    await server.start("127.0.0.1", port)
    assert await answers(port)
    await server.stop(0)
