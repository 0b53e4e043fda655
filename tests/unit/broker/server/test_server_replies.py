"""The server's replies: in the order of requests, however long each takes, and only to their connection."""

from __future__ import annotations

import asyncio
import logging
import random
import struct

import pytest

from tests.support.server_client import (
    BUG,
    COROUTINE,
    ECHO,
    LARGE,
    LARGE_REPLY,
    LATER,
    MALFORMED,
    SILENT,
    Client,
    Stub,
    answers,
    on_uvloop,
    request,
    serving,
    settled,
    until,
)


@on_uvloop
async def test_replies_keep_the_order_of_requests(seed: int) -> None:
    rng = random.Random(seed)
    stub = Stub()
    async with serving(stub) as (_, port):
        client = await Client.connect(port)
        kinds = [rng.choice([ECHO, LATER, SILENT, LARGE]) for _ in range(300)]
        client.send(b"".join(request(kind, number) for number, kind in enumerate(kinds)))
        answered = [number for number, kind in enumerate(kinds) if kind != SILENT]
        replies = asyncio.create_task(client.reply_numbers(len(answered)))
        waiting = [number for number, kind in enumerate(kinds) if kind == LATER]
        rng.shuffle(waiting)
        for number in waiting:
            await stub.has_future(number)
            stub.complete(number)
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        assert await replies == answered
        assert stub.seen == list(range(300))


@on_uvloop
async def test_a_future_lets_the_next_frame_in_a_coroutine_does_not() -> None:
    stub = Stub()
    async with serving(stub) as (_, port):
        client = await Client.connect(port)
        client.send(request(LATER, 0) + request(COROUTINE, 1) + request(ECHO, 2))
        client.send(request(LATER, 3))
        await until(lambda: 1 in stub.gates)
        await settled()
        assert stub.seen == [0, 1]
        stub.gates[1].set()
        await until(lambda: len(stub.seen) == 4)
        stub.complete(3)
        stub.complete(0)
        assert await client.reply_numbers(4) == [0, 1, 2, 3]


@on_uvloop
async def test_a_request_that_arrives_one_byte_at_a_time() -> None:
    stub = Stub()
    async with serving(stub) as (_, port):
        client = await Client.connect(port)
        for byte in request(ECHO, 1, b"payload") + request(ECHO, 2, b"another"):
            client.send(bytes([byte]))
            await client.sent()
            await asyncio.sleep(0)
        assert (await client.reply())[8:] == b"payload"
        assert (await client.reply())[8:] == b"another"


@on_uvloop
async def test_thousands_of_small_frames_in_one_write() -> None:
    stub = Stub()
    async with serving(stub) as (server, port):
        client = await Client.connect(port)
        client.send(b"".join(request(ECHO, number, b"x" * (number % 50)) for number in range(20_000)))
        assert await client.reply_numbers(20_000) == list(range(20_000))
        assert server.buffered_bytes == 0


@pytest.mark.parametrize("size", [60_000, 70_000, 1 << 20, 50 << 20])
@on_uvloop
async def test_large_frames_come_back_as_they_were(size: int, seed: int) -> None:
    rng = random.Random(seed)
    bodies = [rng.randbytes(size) for _ in range(2)]
    async with serving(Stub()) as (server, port):
        client = await Client.connect(port)
        for number, body in enumerate(bodies):
            client.send(request(ECHO, number, body) + request(ECHO, 99))
        for body in bodies:
            assert (await client.reply())[8:] == body
            assert await client.reply_numbers(1) == [99]
        await until(lambda: server.buffered_bytes == 0)


@on_uvloop
async def test_a_request_without_reply() -> None:
    async with serving(Stub()) as (_, port):
        client = await Client.connect(port)
        client.send(request(SILENT, 1) + request(ECHO, 2))
        assert await client.reply_numbers(1) == [2]


@on_uvloop
async def test_a_bug_in_a_handler_closes_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    stub = Stub()
    async with serving(stub) as (_, port):
        other = await Client.connect(port)
        client = await Client.connect(port)
        client.send(request(ECHO, 1) + request(BUG, 2) + request(ECHO, 3))
        assert await client.reply_numbers(1) == [1]
        assert await client.is_closed_by_server()
        assert stub.seen == [1, 2]
        other.send(request(ECHO, 4))
        assert await other.reply_numbers(1) == [4]
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info
    assert record.exc_info[0] is ZeroDivisionError


@on_uvloop
async def test_a_reply_that_fails_closes_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    stub = Stub()
    async with serving(stub) as (_, port):
        client = await Client.connect(port)
        client.send(request(LATER, 1) + request(LATER, 2))
        await until(lambda: 2 in stub.futures)
        stub.futures[1].set_exception(OSError("no such device"))
        assert await client.is_closed_by_server()
        assert stub.futures[2].cancelled()
        assert await answers(port)
    assert "no such device" in caplog.text


@on_uvloop
async def test_a_malformed_request_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Stub()) as (_, port):
        client = await Client.connect(port)
        client.send(request(MALFORMED, 1))
        assert await client.is_closed_by_server()
        assert await answers(port)
    (record,) = caplog.records
    assert "sent a malformed request: the array is longer than the request" in record.getMessage()
    assert record.exc_info is None


@on_uvloop
async def test_requests_of_a_client_that_left_are_given_up() -> None:
    stub = Stub()
    async with serving(stub) as (server, port):
        client = await Client.connect(port)
        client.send(request(LATER, 1, bytes(1000)) + request(LATER, 2))
        await until(lambda: 2 in stub.futures)
        assert server.buffered_bytes == 1016
        client.close()
        await until(lambda: stub.futures[1].cancelled() and stub.futures[2].cancelled())
        await until(lambda: server.buffered_bytes == 0 and server.connection_count == 0)


@on_uvloop
async def test_whoever_completes_a_reply_never_hears_of_a_client_that_left(caplog: pytest.LogCaptureFixture) -> None:
    stub = Stub()
    async with serving(stub) as (_, port):
        for number in range(50):
            client = await Client.connect(port)
            client.send(request(LATER, number) + request(LARGE, number + 1000) + request(LATER, number + 2000))
            await stub.has_future(number + 2000)
            client.reset()
            if number % 2:
                await asyncio.sleep(0)
            for waiting in (number, number + 2000):
                if not stub.futures[waiting].cancelled():
                    stub.complete(waiting)
        assert await answers(port)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@on_uvloop
async def test_a_coroutine_ends_even_if_its_client_left() -> None:
    stub = Stub()
    async with serving(stub) as (server, port):
        client = await Client.connect(port)
        client.send(request(COROUTINE, 1))
        await until(lambda: 1 in stub.gates)
        client.reset()
        await until(lambda: server.connection_count == 0)
        stub.gates[1].set()
        await until(lambda: stub.finished_coroutines == [1])


@on_uvloop
async def test_a_large_reply_goes_out_whole_between_small_ones() -> None:
    async with serving(Stub()) as (_, port):
        client = await Client.connect(port)
        client.send(request(ECHO, 1) + request(LARGE, 2) + request(ECHO, 3))
        assert await client.reply_numbers(1) == [1]
        assert await client.reply() == struct.pack(">1s3xi", LARGE, 2) + LARGE_REPLY
        assert await client.reply_numbers(1) == [3]
