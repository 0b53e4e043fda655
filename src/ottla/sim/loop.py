"""The event loop of a simulated process, with the part of asyncio's interface that uses the network."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVarTuple, cast

from ottla.sim.host_time import HostTime
from ottla.sim.scheduler import ProcessHost, Scheduler
from ottla.sim.sockets import ListeningSocket, NetworkHost, SimSocket
from ottla.sim.transport import SimServer, SimTransport
from ottla.sim.turn_loop import TurnLoop

if TYPE_CHECKING:
    from ottla.sim.network import SimNetwork

Ts = TypeVarTuple("Ts")


class LoopHost(ProcessHost, NetworkHost, Protocol):
    """The host of an event loop."""


class SimLoop(TurnLoop):
    """The event loop. Unsupported features (threads, subprocesses, signals, files, TLS) raise NotImplementedError."""

    host: LoopHost

    def __init__(self, scheduler: Scheduler, network: SimNetwork, host: LoopHost) -> None:
        assert isinstance(host, HostTime), "a host has clocks of its own"
        super().__init__(scheduler, host)
        self.network = network

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        """Returns one address, whose host is a name in the simulated network. Raises gaierror for an unknown name."""
        resolved = self.network.resolve(self.host, str(host or ""))
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (resolved.name, int(port or 0)))]

    async def create_connection(  # type: ignore[override] # only the options that apply here
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connects over the simulated network. Raises NotImplementedError for options that it lacks, such as TLS."""
        _demand_plain(options)
        connected: asyncio.Future[SimSocket] = self.create_future()
        attempt = self.network.connect(
            self.host, str(host or ""), int(port or 0), partial(self._on_connected, connected)
        )
        try:
            made = await connected
        except BaseException:
            attempt.give_up()
            raise
        return await self._attach(protocol_factory, made)

    def _on_connected(self, connected: asyncio.Future[SimSocket], made: SimSocket | OSError) -> None:
        """Called by the simulated kernel, between turns."""
        self.call_soon(_settle, connected, made)

    async def create_server(  # type: ignore[override] # only the options that apply here
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        start_serving: bool = True,
        **options: Any,
    ) -> SimServer:
        """Listens on this host. Raises NotImplementedError for options that the simulated network lacks, such as
        TLS."""
        _demand_plain(options)
        listening = self.network.listen(self.host, str(host or ""), int(port or 0))
        server = SimServer(self, listening, protocol_factory)
        if start_serving:
            await server.start_serving()
        return server

    async def connect_accepted_socket(  # type: ignore[override] # only the options that apply here
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], sock: Any, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connects an accepted simulated socket to a new protocol."""
        _demand_plain(options)
        assert isinstance(sock, SimSocket), "a real socket has no place in a simulated world"
        return await self._attach(protocol_factory, sock)

    async def _attach(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], sock: SimSocket
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        protocol = protocol_factory()
        made: asyncio.Future[None] = self.create_future()
        transport = SimTransport(self, sock, protocol, made)
        try:
            await made
        except BaseException:
            transport.abort()
            raise
        return cast(asyncio.Transport, transport), protocol

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """Watches a listening socket: calls back in each turn in which a connection can be accepted."""
        assert isinstance(fd, ListeningSocket), "a real socket has no place in a simulated world"
        fd.watch(partial(self.call_soon, self._on_acceptable, fd, callback, args))

    def remove_reader(self, fd: Any) -> bool:
        """Stops watching a listening socket. Returns whether it was watched."""
        assert isinstance(fd, ListeningSocket)
        return fd.watch(None)

    def _on_acceptable(self, listening: ListeningSocket, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            if listening.is_watched:
                callback(*args)
        finally:
            listening.notify_again()


def _settle(connected: asyncio.Future[SimSocket], made: SimSocket | OSError) -> None:
    if connected.done():
        if isinstance(made, SimSocket):
            made.close()
    elif isinstance(made, SimSocket):
        connected.set_result(made)
    else:
        connected.set_exception(made)


def _demand_plain(options: dict[str, Any]) -> None:
    asked = {name for name in ("ssl", "sock", "fd", "happy_eyeballs_delay") if options.get(name)}
    if asked:
        raise NotImplementedError(f"the simulated network has no {', '.join(sorted(asked))}")


def bind(host: str, port: int) -> list[socket.socket]:
    """Replaces `broker.server.listener.bind` inside a simulated world: listens on the host whose loop is running."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    listening = loop.network.listen(loop.host, host, port)
    return cast(list[socket.socket], [listening])
