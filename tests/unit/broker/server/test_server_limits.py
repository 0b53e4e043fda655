"""The server's limits: each is reached by one client while another one is served."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ottla.broker.server.limits import Limits, QuietLog, RequestMemory
from ottla.broker.server.listener import Listener
from ottla.broker.server.listener_kind import ListenerKind
from tests.support.server_client import (
    ECHO,
    LARGE,
    LATER,
    PENDING,
    Client,
    Stub,
    answers,
    on_uvloop,
    request,
    serving,
    settled,
    until,
)

MIB = 1 << 20


@on_uvloop
async def test_a_request_too_large_is_refused_by_its_size_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Stub(), socket_request_max_bytes=10_000) as (_, port):
        client = await Client.connect(port)
        client.send(request(ECHO, 1) + struct.pack(">i", 10_001))
        assert await client.reply_numbers(1) == [1]
        assert await client.is_closed_by_server()
        assert await answers(port)
    assert "more than socket.request.max.bytes (10000)" in caplog.text
    assert len(caplog.records) == 1


@on_uvloop
async def test_an_http_client_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Stub()) as (_, port):
        client = await Client.connect(port)
        client.send(b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await client.is_closed_by_server()
    assert "is it speaking HTTP?" in caplog.text


@on_uvloop
async def test_a_connection_too_many_is_closed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Stub(), max_connections=3) as (server, port):
        clients = [await Client.connect(port) for _ in range(3)]
        await until(lambda: server.connection_count == 3)
        for _ in range(20):
            one_more = await Client.connect(port)
            assert await one_more.is_closed_by_server()
        clients[0].send(request(ECHO, 1))
        assert await clients[0].reply_numbers(1) == [1]
        clients[1].close()
        await until(lambda: server.connection_count == 2)
        assert await answers(port)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "3 connections are open (max.connections)" in lines[0]


@on_uvloop
async def test_requests_in_flight_are_bounded_and_go_on_when_answered() -> None:
    stub = Stub()
    async with serving(stub, ottla_max_inflight_requests_per_connection=10) as (_, port):
        client = await Client.connect(port)
        client.send(b"".join(request(LATER, number) for number in range(1000)))
        replies = asyncio.create_task(client.reply_numbers(1000))
        for number in range(1000):
            await stub.has_future(number)
            assert len(stub.futures) <= number + 10
            stub.complete(number)
        assert await replies == list(range(1000))


@on_uvloop
async def test_a_connection_that_reached_its_limit_again_goes_on_when_answered() -> None:
    """The requests that waited fill the limit once more, and none is left. Their replies must resume reading all the
    same (load seed 1202: a producer waited for ever)."""
    stub = Stub()
    async with serving(stub, ottla_max_inflight_requests_per_connection=2) as (_, port):
        client = await Client.connect(port)
        client.send(b"".join(request(PENDING, number) for number in range(4)))
        for number in range(4):
            await stub.has_pending(number)
            if number % 2:
                stub.complete(number - 1)
                stub.complete(number)
        assert await client.reply_numbers(4) == list(range(4))
        client.send(request(ECHO, 4))
        assert await client.reply_numbers(1) == [4]


@on_uvloop
async def test_buffered_requests_are_bounded_over_all_connections() -> None:
    stub = Stub()
    async with serving(stub, queued_max_request_bytes=MIB) as (server, port):
        clients = [await Client.connect(port) for _ in range(20)]
        for number, client in enumerate(clients):
            for turn in range(20):
                client.send(request(LATER, number * 100 + turn, bytes(60_000)))
        await until(lambda: server.buffered_bytes >= MIB)
        await settled()
        # The frame that exceeds the limit, and what each connection reads before it notices.
        assert server.buffered_bytes < MIB + 20 * 65_000
        replies = [asyncio.create_task(client.reply_numbers(20)) for client in clients]
        answered: set[int] = set()
        while len(answered) < 400:
            for number in stub.futures.keys() - answered:
                stub.complete(number)
                answered.add(number)
            await asyncio.sleep(0)
            assert server.buffered_bytes < MIB + 20 * 65_000
        assert await asyncio.gather(*replies) == [[n * 100 + turn for turn in range(20)] for n in range(20)]
        await until(lambda: server.buffered_bytes == 0)


@on_uvloop
async def test_a_request_larger_than_the_memory_for_requests_gets_through() -> None:
    async with serving(Stub(), queued_max_request_bytes=100_000) as (_, port):
        client = await Client.connect(port)
        client.send(request(ECHO, 1, bytes(5 * MIB)))
        assert len(await client.reply()) == 8 + 5 * MIB


@on_uvloop
async def test_without_a_limit_on_memory_requests_are_read() -> None:
    stub = Stub()
    async with serving(stub, queued_max_request_bytes=-1) as (_, port):
        client = await Client.connect(port)
        client.send(request(LATER, 1, bytes(100_000)) + request(ECHO, 2, bytes(5 * MIB)))
        await stub.has_future(1)
        stub.complete(1)
        assert await client.reply_numbers(2) == [1, 2]


@on_uvloop
async def test_beginnings_of_requests_alone_cannot_exhaust_memory(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"queued_max_request_bytes": MIB, "socket_request_max_bytes": MIB}
    async with serving(Stub(), **settings) as (server, port):
        clients = [await Client.connect(port) for _ in range(30)]
        for client in clients:
            client.send(struct.pack(">i", MIB) + bytes(20_000))
        await until(lambda: server.buffered_bytes >= MIB)
        for client in clients:
            client.send(bytes(600_000))
        await until(lambda: server.connection_count < 30)
        await settled()
        assert server.buffered_bytes <= 2 * MIB
        for client in clients:
            client.close()
        await until(lambda: server.buffered_bytes == 0)
        assert await answers(port)
    assert "request memory exhausted (queued.max.request.bytes)" in caplog.text


@on_uvloop
async def test_stalled_beginnings_make_room_for_those_that_wait() -> None:
    settings = {"queued_max_request_bytes": 200_000, "ottla_frame_stall_ms": 200}
    async with serving(Stub(), **settings) as (server, port):
        stalled = [await Client.connect(port) for _ in range(10)]
        for client in stalled:
            client.send(struct.pack(">i", MIB) + bytes(20_000))
        await until(lambda: server.buffered_bytes >= 200_000)
        waiting = await Client.connect(port)
        waiting.send(request(ECHO, 1, bytes(100_000)))
        assert await waiting.reply_numbers(1) == [1]
        for client in stalled:
            assert await client.is_closed_by_server()


@on_uvloop
async def test_a_slow_reader_stops_being_served_not_others() -> None:
    stub = Stub()
    async with serving(stub) as (_, port):
        slow = socket.create_connection(("127.0.0.1", port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(slow, b"".join(request(LARGE, number) for number in range(200)))
        await until(lambda: len(stub.seen) > 0)
        await settled()
        # The kernel's buffers and one high-water mark: far less than 200 replies of a megabyte.
        assert len(stub.seen) < 40
        assert await answers(port)
        received = bytearray(8)
        for number in range(200):
            await _receive_exactly(slow, memoryview(received)[:4])
            (size,) = struct.unpack_from(">i", received)
            reply = bytearray(size)
            await _receive_exactly(slow, memoryview(reply))
            assert struct.unpack_from(">i", reply, 4)[0] == number
        slow.close()


async def _receive_exactly(client: socket.socket, into: memoryview) -> None:
    while into:
        count = await asyncio.get_running_loop().sock_recv_into(client, into)
        assert count
        into = into[count:]


@on_uvloop
async def test_idle_connections_are_closed_busy_ones_are_not() -> None:
    stub = Stub()
    async with serving(stub, connections_max_idle_ms=100) as (server, port):
        idle = await Client.connect(port)
        waiting = await Client.connect(port)
        waiting.send(request(LATER, 1))
        await until(lambda: 1 in stub.futures)
        assert await idle.is_closed_by_server()
        assert not stub.futures[1].cancelled()
        stub.complete(1)
        assert await waiting.reply_numbers(1) == [1]
        await until(lambda: server.connection_count == 0)


@on_uvloop
async def test_a_request_that_stalls_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Stub(), ottla_frame_stall_ms=100) as (server, port):
        idle = await Client.connect(port)
        stalled = [await Client.connect(port) for _ in range(3)]
        stalled[0].send(b"\0\0")
        stalled[1].send(request(ECHO, 1, bytes(100))[:-1])
        stalled[2].send(request(ECHO, 1, bytes(200_000))[:-1])
        for client in stalled:
            assert await client.is_closed_by_server()
        await until(lambda: server.connection_count == 1)
        assert server.buffered_bytes == 0
        idle.send(request(ECHO, 2))
        assert await idle.reply_numbers(1) == [2]
    assert "sent a part of a request and then nothing for 100 ms" in caplog.text


@on_uvloop
async def test_a_request_that_waits_for_the_server_does_not_stall() -> None:
    stub = Stub()
    settings = {"ottla_frame_stall_ms": 50, "ottla_max_inflight_requests_per_connection": 1}
    async with serving(stub, **settings) as (_, port):
        client = await Client.connect(port)
        client.send(request(LATER, 1) + request(ECHO, 2, bytes(200_000)))
        await until(lambda: 1 in stub.futures)
        await asyncio.sleep(0.3)
        stub.complete(1)
        assert await client.reply_numbers(2) == [1, 2]


@on_uvloop
async def test_thousands_of_half_open_connections() -> None:
    stub = Stub()
    async with serving(stub) as (server, port):
        strangers = []
        for number in range(1500):
            stranger = socket.socket()
            stranger.setblocking(False)
            await asyncio.get_running_loop().sock_connect(stranger, ("127.0.0.1", port))
            if number % 2:
                stranger.send(b"\0\0\0")
            strangers.append(stranger)
        await until(lambda: server.connection_count == 1500)
        assert await answers(port)
        for stranger in strangers:
            stranger.close()
        await until(lambda: server.connection_count == 0)
        assert await answers(port)


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Uses up the file descriptors, so that the next one fails with EMFILE."""
    probe = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_descriptor = probe.fileno()
    probe.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_descriptor, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@on_uvloop
async def test_no_descriptor_for_a_connection(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakeups = 0
    on_readable = Listener._on_readable

    def counted(listener: Listener, listening: socket.socket, kind: ListenerKind) -> None:
        nonlocal wakeups
        wakeups += 1
        on_readable(listener, listening, kind)

    monkeypatch.setattr(Listener, "_on_readable", counted)
    async with serving(Stub()) as (_, port):
        served = await Client.connect(port)
        served.send(request(ECHO, 1))
        assert await served.reply_numbers(1) == [1]
        stranger = socket.socket()
        stranger.setblocking(False)
        wakeups = 0
        with no_descriptors_left():
            await asyncio.get_running_loop().sock_connect(stranger, ("127.0.0.1", port))
            await until(lambda: "cannot accept connections" in caplog.text)
            for number in range(20):
                served.send(request(ECHO, number))
                assert await served.reply_numbers(1) == [number]
                await asyncio.sleep(0.01)
            assert wakeups < 20
        await asyncio.get_running_loop().sock_sendall(stranger, request(ECHO, 5))
        assert await asyncio.get_running_loop().sock_recv(stranger, 100) == request(ECHO, 5)
        stranger.close()


def test_a_line_in_the_log_is_not_repeated_too_often(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    quiet_log = QuietLog(lambda: now_s)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            quiet_log.warning("strangers", "a stranger came")
        quiet_log.warning("accidents", "something else")
        now_s = 60.0
        quiet_log.warning("strangers", "a stranger came")
    assert [record.getMessage() for record in caplog.records] == [
        "a stranger came",
        "something else",
        "a stranger came (99 more like this before)",
    ]


def test_memory_wakes_those_who_wait_in_their_order() -> None:
    limits = Limits(1000, 10, 10, 100, 10, 1000, 1000, idle_ms=-1, stall_ms=1000)
    due: list[object] = []
    woken: list[str] = []
    memory = RequestMemory(limits, due.append)

    class Waiting:
        wanted_bytes = 60

        def __init__(self, name: str) -> None:
            self.name = name

        def on_memory_freed(self) -> None:
            woken.append(self.name)
            memory.take(60)

    memory.take(100)
    for name in ("first", "second", "third"):
        memory.wait(Waiting(name))
    memory.take(-50)
    memory.take(-50)
    assert len(due) == 1
    memory._wake()
    assert woken == ["first", "second"]
