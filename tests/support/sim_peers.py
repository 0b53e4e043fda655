"""Two endpoints of a simulated connection that record their events, for tests of streams and of the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld

PORT = 7000


class Peer(asyncio.Protocol):
    """Records its events. With `keeps_open` it continues to write after the other end has stopped."""

    def __init__(self, *, keeps_open: bool = False) -> None:
        self.keeps_open = keeps_open
        self.pieces: list[bytes] = []
        self.events: list[str] = []
        self.lost_with: Exception | None = None
        self.can_write = True
        self.transport: asyncio.Transport

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keeps_open

    def pause_writing(self) -> None:
        self.can_write = False
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.can_write = True
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_with = exc
        self.events.append("lost")


class BufferedPeer(asyncio.BufferedProtocol):
    """Reads into a buffer of its own, as the broker does."""

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer = bytearray(buffer_bytes)
        self.pieces: list[bytes] = []
        self.events: list[str] = []
        self.transport: asyncio.Transport

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert 0 < nbytes <= len(self._buffer)
        self.pieces.append(bytes(self._buffer[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")


def on(host: SimHost, action: Callable[[], object]) -> None:
    """Runs a function as a callback of the host."""
    host.loop.call_soon(action)
    host.world.run_for(0.001)


def say_and_close(peer: Peer, data: bytes) -> None:
    peer.transport.write(data)
    peer.transport.close()


async def listen(host: SimHost, peers: list[Peer], port: int = PORT, **options: bool) -> None:
    def accepted() -> Peer:
        peers.append(Peer(**options))
        return peers[-1]

    await host.loop.create_server(accepted, host.name, port)


def connected(world: SimWorld, *, keeps_open: bool = False) -> tuple[Peer, Peer]:
    """Connects a peer on the client's host with one on the server's."""
    peers: list[Peer] = []
    client, server = world.hosts["client"], world.hosts["server"]
    server.spawn(listen(server, peers, keeps_open=keeps_open))
    world.run_for(0.1)
    connecting = client.spawn(client.loop.create_connection(lambda: Peer(keeps_open=keeps_open), "server", PORT))
    world.run_until(lambda: connecting.done() and bool(peers) and "made" in peers[0].events)
    return cast(Peer, connecting.result()[1]), peers[0]


def connect_error(world: SimWorld, name: str = "server") -> OSError:
    async def connect() -> OSError:
        with pytest.raises(OSError) as failure:  # noqa: PT011 - the tests check which OSError it is
            await world.hosts["client"].loop.create_connection(Peer, name, PORT)
        return failure.value

    task = world.hosts["client"].spawn(connect())
    world.run_until(task.done)
    return task.result()
