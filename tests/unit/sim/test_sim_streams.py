"""Simulated streams preserve bytes and order, however they are split."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import cast

import pytest

from ottla.sim.world import SimWorld, UnhandledError
from tests.support.sim_peers import PORT, BufferedPeer, Peer, connect_error, connected, listen, on, say_and_close

SEEDS = range(30)


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(1) as world:
        for name in ("client", "server", "other"):
            world.host(name)
        world.boot_all()
        yield world


# -- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_keep_their_bytes_and_their_order(seed: int) -> None:
    """Two connections, both directions at once, plain and buffered protocols, with faults that end."""
    rng = Random(seed)
    sent: dict[str, bytes] = {}
    peers: dict[str, BufferedPeer | Peer] = {}

    async def write(name: str) -> None:
        peer, parts = peers[name], list[bytes]()
        for _ in range(40):
            parts.append(rng.randbytes(rng.choice([1, 5, 100, 3000, 30_000])))
            if rng.random() < 0.3:
                peer.transport.writelines([parts[-1][:3], bytearray(parts[-1][3:7]), memoryview(parts[-1])[7:]])
            else:
                peer.transport.write(parts[-1])
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.05]))
        sent[name] = b"".join(parts)

    with SimWorld(seed) as world:
        for name in ("a", "b"):
            world.host(name).boot()
        a, b = world.hosts["a"], world.hosts["b"]

        async def serve() -> None:
            def accepted() -> BufferedPeer:
                name = f"server-{len(peers)}"
                peer = peers[name] = BufferedPeer(rng.choice([300, 5000, 100_000]))
                return peer

            await b.loop.create_server(accepted, "b", PORT)

        async def connect(name: str) -> None:
            peers[name] = cast(Peer, (await a.loop.create_connection(Peer, "b", PORT))[1])

        b.spawn(serve())
        world.run_for(1)
        for name in ("client-1", "client-2"):
            a.spawn(connect(name))
        world.run_until(lambda: len(peers) == 4)
        world.run_for(0.1)
        for name in list(peers):
            (b if name.startswith("server") else a).spawn(write(name))
        network = world.network
        for fault in (network.slow_down(["a"], ["b"], add_s=0.05), network.lose(["a"], ["b"], share=0.2)):
            world.after(rng.random(), fault.heal)
        world.after(0.2, lambda: world.after(0.5, network.cut(["a"], ["b"], one_way=rng.random() < 0.5).heal))
        world.run_for(60)
    received = sorted(peer.data for peer in peers.values())
    assert received == sorted(sent.values())


def test_pieces_are_not_what_was_written(world: SimWorld) -> None:
    client, server = connected(world)
    writes = [bytes([number]) * 1000 for number in range(100)]
    for number, data in enumerate(writes):
        world.hosts["client"].loop.call_later(number * 0.01, client.transport.write, data)
    world.run_for(3)
    assert server.data == b"".join(writes)
    assert server.pieces != writes
    assert {len(piece) for piece in server.pieces} - {1000}


def test_what_is_written_in_one_turn_leaves_at_its_end(world: SimWorld) -> None:
    """As with uvloop: a buffer that is modified too early is sent modified."""
    client, server = connected(world)
    buffer = bytearray(b"before")

    def write_and_change() -> None:
        client.transport.write(buffer)
        assert client.transport.get_write_buffer_size() == 6
        buffer[:] = b"after!"

    on(world.hosts["client"], write_and_change)
    world.run_for(1)
    assert server.data == b"after!"
    assert client.transport.get_write_buffer_size() == 0


def test_a_writer_waits_for_a_reader_that_does_not_read(world: SimWorld) -> None:
    client, server = connected(world)
    server.transport.pause_reading()
    assert not server.transport.is_reading()
    chunk, total, most_buffered = b"x" * 10_000, 2_000_000, 0
    written = 0

    async def write() -> None:
        nonlocal written, most_buffered
        client.transport.set_write_buffer_limits(high=50_000)
        while written < total:
            if client.can_write:
                client.transport.write(chunk)
                written += len(chunk)
                most_buffered = max(most_buffered, client.transport.get_write_buffer_size())
            await asyncio.sleep(0.0005)

    task = world.hosts["client"].spawn(write())
    world.run_for(10)
    window_bytes = world.network.settings.window_bytes
    assert written <= window_bytes + 70_000
    assert client.events[-1] == "pause"
    on(world.hosts["server"], server.transport.resume_reading)
    world.run_until(lambda: task.done() and len(server.data) == total)
    assert most_buffered <= 60_000
    assert client.events.count("pause") == client.events.count("resume") > 1
    sockets = [one for host in world.hosts.values() for one in host.sockets]
    assert all(one.received_bytes <= window_bytes for one in sockets)


def test_a_half_closed_stream_goes_on_the_other_way(world: SimWorld) -> None:
    client, server = connected(world, keeps_open=True)

    def say_and_end() -> None:
        client.transport.write(b"question")
        client.transport.write_eof()
        with pytest.raises(RuntimeError):
            client.transport.write(b"more")

    on(world.hosts["client"], say_and_end)
    world.run_for(1)
    assert (server.data, server.events) == (b"question", ["made", "eof"])
    on(world.hosts["server"], partial(say_and_close, server, b"answer"))
    world.run_for(1)
    assert client.data == b"answer"
    assert client.events == ["made", "eof"]
    assert server.events[-1] == "lost"


def test_an_end_without_more_to_say_closes(world: SimWorld) -> None:
    client, server = connected(world)
    on(world.hosts["client"], partial(say_and_close, client, b"last words"))
    assert client.transport.is_closing()
    world.run_for(1)
    assert server.data == b"last words"
    assert server.events == ["made", "eof", "lost"]
    assert client.events == ["made", "lost"]
    assert client.lost_with is None
    assert not any(host.sockets for host in world.hosts.values())


def test_an_abort_drops_what_waits(world: SimWorld) -> None:
    client, server = connected(world)
    server.transport.pause_reading()
    on(world.hosts["client"], lambda: client.transport.write(b"x" * 1_000_000))
    assert client.transport.get_write_buffer_size() > 0
    on(world.hosts["client"], client.transport.abort)
    assert client.events[-1] == "lost"
    on(world.hosts["server"], server.transport.resume_reading)
    world.run_for(5)
    assert len(server.data) <= world.network.settings.window_bytes
    assert server.events[-1] == "lost"


def test_closing_with_unread_bytes_resets_the_other_end(world: SimWorld) -> None:
    client, server = connected(world)
    server.transport.pause_reading()
    on(world.hosts["client"], lambda: client.transport.write(b"nobody reads this"))
    world.run_for(0.1)
    on(world.hosts["server"], server.transport.close)
    world.run_for(1)
    assert isinstance(client.lost_with, ConnectionResetError)


def test_a_protocol_that_raises_fails_the_run(world: SimWorld) -> None:
    client, server = connected(world)
    server.data_received = lambda data: 1 / 0  # type: ignore[method-assign,assignment] # a bug
    client.transport.write(b"x")
    with pytest.raises(UnhandledError, match=r"on server: .*ZeroDivisionError"):
        world.run_for(1)
    world.run_for(1)
    assert server.events[-1] == "lost"


def test_asyncio_streams_work_on_top(world: SimWorld) -> None:
    server = world.hosts["server"]

    async def serve() -> None:
        async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line.upper())
                await writer.drain()
            writer.close()
            await writer.wait_closed()

        listening = await asyncio.start_server(shout, "server", PORT)
        async with listening:
            await listening.serve_forever()

    async def talk() -> list[bytes]:
        reader, writer = await asyncio.open_connection("server", PORT)
        assert writer.get_extra_info("peername") == ("server", PORT)
        lines = []
        for number in range(20):
            writer.write(b"line %d\n" % number)
            lines.append(await asyncio.wait_for(reader.readline(), 1))
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        return lines

    server.spawn(serve())
    assert world.run(talk()) == [b"LINE %d\n" % number for number in range(20)]


def test_a_narrow_link_takes_its_time(world: SimWorld) -> None:
    client, server = connected(world)
    world.network.link("client", "server").bandwidth_bytes_s = 100_000
    begin_s = world.now_s
    on(world.hosts["client"], lambda: client.transport.write(b"x" * 300_000))
    world.run_until(lambda: len(server.data) == 300_000)
    assert 3 <= world.now_s - begin_s < 3.5


# -- connecting ------------------------------------------------------------------------------------------------------


def test_connecting_to_nobody(world: SimWorld) -> None:
    assert isinstance(connect_error(world), ConnectionRefusedError)
    assert isinstance(connect_error(world, "nowhere"), socket.gaierror)
    assert world.now_s < 1
    world.hosts["server"].cut_power()
    error = connect_error(world)
    assert (type(error), error.errno) == (TimeoutError, errno.ETIMEDOUT)
    assert world.now_s >= world.network.settings.connect_timeout_s


def test_ports_belong_to_one_process(world: SimWorld) -> None:
    async def main() -> None:
        loop = world.hosts["driver"].loop
        first = await loop.create_server(Peer, "driver", PORT)
        with pytest.raises(OSError, match="another process listens"):
            await loop.create_server(Peer, "0.0.0.0", PORT)
        with pytest.raises(OSError, match="no such address"):
            await loop.create_server(Peer, "server", PORT)
        chosen = await loop.create_server(Peer, "", 0)
        assert chosen.sockets[0].getsockname()[1] != PORT
        _, peer = await loop.create_connection(Peer, "localhost", PORT)
        cast(Peer, peer).transport.close()
        first.close()
        await loop.create_server(Peer, "driver", PORT)

    world.run(main())


def test_a_connect_goes_through_when_the_cut_heals(world: SimWorld) -> None:
    peers: list[Peer] = []
    world.hosts["server"].spawn(listen(world.hosts["server"], peers))
    cut = world.network.cut(["client"], ["server"])
    world.run_for(0.1)
    connecting = world.hosts["client"].spawn(world.hosts["client"].loop.create_connection(Peer, "server", PORT))
    world.run_for(5)
    assert not connecting.done()
    cut.heal()
    world.run_until(connecting.done, timeout_s=10)
    world.run_for(0.1)
    assert peers[0].events == ["made"]


def test_a_cancelled_connect_leaves_nothing(world: SimWorld) -> None:
    peers: list[Peer] = []
    world.hosts["server"].spawn(listen(world.hosts["server"], peers))
    world.run_for(0.1)
    client = world.hosts["client"]
    for delay_us in range(0, 3000, 20):
        connecting = client.spawn(client.loop.create_connection(Peer, "server", PORT))
        world.run_for(delay_us * 1e-6)
        if not connecting.cancel():
            cast(Peer, connecting.result()[1]).transport.abort()
        world.run_for(1)
        assert not client.sockets
        assert not world.hosts["server"].sockets
    assert 0 < len(peers) < 150
