"""The simulated network: stream connections between named hosts, over links that are slow, lossy or cut.

    network.link("a", "b").delay = Delay(...)       one direction; the other is a separate link
    fault = network.cut(["a"], ["b", "c"])          nothing passes in either direction; `fault.heal()` ends it
    network.cut(["a"], ["b"], one_way=True)         a does not reach b, but b reaches a
    network.slow_down(["a"], ["b"], add_s=0.3)
    network.lose(["a"], ["b"], share=0.1)           lost pieces are retransmitted, so the stream stalls
    network.reset(["a"], ["b"])                     breaks the existing connections

Faults accumulate, and each is healed separately. `NetworkSettings` defines how streams behave.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.sim.links import LOOPBACK, Link, NetworkFault, NetworkSettings
from ottla.sim.pipes import Kind, Pipe
from ottla.sim.sockets import Address, ListeningSocket, NetworkHost, SimSocket

if TYPE_CHECKING:
    from ottla.sim.scheduler import Scheduler

EPHEMERAL_PORTS_FROM = 32768
_ANY_OF_MINE = frozenset({"", "0.0.0.0", "::", "127.0.0.1", "::1", "localhost"})


class Attempt:
    """One connection attempt: its SYN is retransmitted, at increasing intervals, until a reply arrives."""

    def __init__(
        self,
        network: SimNetwork,
        client: NetworkHost,
        server: NetworkHost,
        port: int,
        done: Callable[[SimSocket | OSError], None],
    ) -> None:
        self._network = network
        self._client = client
        self._server = server
        self._port = port
        self._done = done
        self._there = network.link(client.name, server.name)
        self._back = network.link(server.name, client.name)
        self._timeout_s = 1.0
        self._deadline_s = network.scheduler.now_s + network.settings.connect_timeout_s
        self._is_over = False
        self._socket: SimSocket | None = None
        self._incarnation = client.incarnation
        self._try()

    def give_up(self) -> None:
        """Ends the attempt. Closes the connection if it is already open."""
        self._is_over = True
        if self._socket is not None:
            self._socket.close()

    def _try(self) -> None:
        if self._is_over:
            return
        scheduler = self._network.scheduler
        if scheduler.now_s >= self._deadline_s:
            self._end(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
            return
        scheduler.at(self._there.arrival_s(0), self._on_syn)
        scheduler.after(self._timeout_s, self._try)
        self._timeout_s *= 2

    def _on_syn(self) -> None:
        if self._is_over or self._there.is_cut or not self._server.is_up:
            return
        listening = self._network.listening_on(self._server, self._port)
        if listening is None or not listening.is_full:
            self._network.scheduler.at(self._back.arrival_s(0), self._on_answer, listening)

    def _on_answer(self, listening: ListeningSocket | None) -> None:
        if self._is_over or self._back.is_cut or not self._is_client_alive:
            return
        if listening is None:
            self._end(ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))
            return
        self._socket = self._network.open(self._client, self._server, listening)
        self._end(self._socket)

    @property
    def _is_client_alive(self) -> bool:
        return self._client.is_running and self._client.incarnation == self._incarnation

    def _end(self, outcome: SimSocket | OSError) -> None:
        self._is_over = True
        if self._is_client_alive:
            self._done(outcome)


class SimNetwork:
    """The network of one world."""

    def __init__(self, scheduler: Scheduler, hosts: Mapping[str, NetworkHost]) -> None:
        self.scheduler = scheduler
        self.settings = NetworkSettings()
        self._hosts = hosts
        self.stalled: dict[Pipe, None] = {}
        self.unacknowledged: dict[Pipe, None] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._listening: dict[Address, ListeningSocket] = {}
        self._faults: dict[NetworkFault, None] = {}
        self._number = 0
        self._next_port = EPHEMERAL_PORTS_FROM

    # -- connections -----------------------------------------------------------------------------------------

    def resolve(self, asking: NetworkHost, name: str) -> NetworkHost:
        """Returns the host with this name; a wildcard or loopback address means the host that asks. Raises gaierror for
        an unknown name."""
        if name in _ANY_OF_MINE:
            return asking
        host = self._hosts.get(name)
        if host is None:
            raise socket.gaierror(socket.EAI_NONAME, f"there is no host {name}")
        return host

    def link(self, source: str, target: str) -> Link:
        """Returns the link from one host to another. It is created on first use."""
        found = self._links.get((source, target))
        if found is None:
            delay = LOOPBACK if source == target else self.settings.delay
            found = self._links[source, target] = Link(self.scheduler, delay)
        return found

    def listen(self, host: NetworkHost, name: str, port: int) -> ListeningSocket:
        """Listens on a port of a host; port 0 chooses a free one. Raises OSError if the name belongs to another host or
        the port is in use."""
        if self.resolve(host, name) is not host:
            raise OSError(errno.EADDRNOTAVAIL, f"cannot listen on {name}:{port}: {host.name} has no such address")
        port = port or self._ephemeral_port()
        if (host.name, port) in self._listening:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {name}:{port}: another process listens there")
        listening = self._listening[host.name, port] = ListeningSocket(self, host, port)
        return listening

    def listening_on(self, host: NetworkHost, port: int) -> ListeningSocket | None:
        """Returns the socket that listens on a port of a host, or None."""
        return self._listening.get((host.name, port))

    def forget_listening(self, listening: ListeningSocket) -> None:
        self._listening.pop(listening.getsockname(), None)

    def connect(
        self, client: NetworkHost, name: str, port: int, done: Callable[[SimSocket | OSError], None]
    ) -> Attempt:
        """Starts a connection attempt. `done` gets the socket or the error, between turns. An unknown name raises
        gaierror immediately."""
        return Attempt(self, client, self.resolve(client, name), port, done)

    def open(self, client: NetworkHost, server: NetworkHost, listening: ListeningSocket) -> SimSocket:
        """Opens a connection and returns the client's end. The server's end can be accepted once the last step of the
        handshake arrives there."""
        there, back = self.link(client.name, server.name), self.link(server.name, client.name)
        request, reply = Pipe(self, there, back), Pipe(self, back, there)
        local, remote = (client.name, self._ephemeral_port()), listening.getsockname()
        client_end = SimSocket(client, local, remote, inbound=reply, outbound=request)
        server_end = SimSocket(server, remote, local, inbound=request, outbound=reply)
        server_end.listening = listening
        self.scheduler.note(f"{client.name}:{client_end.number} connects to {server.name}:{server_end.number}")
        request.push(Kind.OPEN)
        return client_end

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def _ephemeral_port(self) -> int:
        self._next_port += 1
        return self._next_port - 1

    # -- faults ----------------------------------------------------------------------------------------------

    def cut(self, some: Iterable[str], others: Iterable[str], *, one_way: bool = False) -> NetworkFault:
        """Cuts the links between the two groups; with `one_way`, only those from `some` to `others`."""
        links = self._between(some, others, one_way=one_way)
        for link in links:
            link.cuts += 1
        return self._fault(links, _uncut)

    def partition(self, *groups: Iterable[str]) -> NetworkFault:
        """Partitions the network: hosts reach only their own group. A host that is in no group reaches everybody."""
        members = [list(group) for group in groups]
        links = [
            link
            for number, group in enumerate(members)
            for other in members[number + 1 :]
            for link in self._between(group, other)
        ]
        for link in links:
            link.cuts += 1
        return self._fault(links, _uncut)

    def slow_down(self, some: Iterable[str], others: Iterable[str], *, add_s: float) -> NetworkFault:
        """Adds a delay to the links between the two groups, in both directions."""
        links = self._between(some, others)
        for link in links:
            link.slowdowns.append(add_s)
        return self._fault(links, lambda link: link.slowdowns.remove(add_s))

    def lose(self, some: Iterable[str], others: Iterable[str], *, share: float) -> NetworkFault:
        """Loses a share of the pieces between the two groups, in both directions."""
        links = self._between(some, others)
        for link in links:
            link.losses.append(share)
        return self._fault(links, lambda link: link.losses.remove(share))

    def reset(self, some: Iterable[str], others: Iterable[str], *, share: float = 1.0) -> int:
        """Breaks connections between the two groups, at both ends. Returns how many."""
        near, far = set(some), set(others)
        count = 0
        for name, host in self._hosts.items():
            for one in list(host.sockets) if name in near else []:
                if one.remote[0] in far and self.scheduler.rng.random() < share:
                    count += 1
                    for pipe in (one.inbound, one.outbound):
                        error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
                        self.scheduler.at(pipe.link.arrival_s(0), pipe.reader.on_broken, error)
        return count

    def heal(self) -> None:
        """Ends every fault."""
        for fault in list(self._faults):
            fault.heal()

    def _on_healed(self, fault: NetworkFault) -> None:
        self._faults.pop(fault, None)
        self.try_again()

    def try_again(self) -> None:
        """Retransmits after some link has become usable again."""
        for pipe in list(self.stalled):
            pipe.retry()
        for pipe in list(self.unacknowledged):
            if not pipe.back.is_cut:
                del self.unacknowledged[pipe]
                pipe.acknowledge()

    def _fault(self, links: list[Link], heal: Callable[[Link], None]) -> NetworkFault:
        fault = NetworkFault(links, heal, self._on_healed)
        self._faults[fault] = None
        return fault

    def _between(self, some: Iterable[str], others: Iterable[str], *, one_way: bool = False) -> list[Link]:
        pairs = [(a, b) for a in some for b in others if a != b]
        if not one_way:
            pairs += [(b, a) for a, b in pairs]
        return [self.link(a, b) for a, b in dict.fromkeys(pairs)]

    # -- events of hosts -----------------------------------------------------------------------------------------

    def on_host_up(self, host: NetworkHost) -> None:
        """Retransmits after a machine was switched on."""
        self.try_again()

    def on_process_gone(self, host: NetworkHost) -> None:
        """Closes the sockets of a dead process, as the kernel does: each peer that can be reached sees an end or a
        reset."""
        self._close_listening(host)
        for one in list(host.sockets):
            one.close()

    def on_power_lost(self, host: NetworkHost) -> None:
        """Drops the sockets of a host without power. No peer is notified; some of the data sent last is still in
        flight."""
        self._close_listening(host)
        for one in list(host.sockets):
            one.vanish(self.scheduler.rng.randint(0, one.outbound.in_flight_count))
        host.sockets.clear()

    def _close_listening(self, host: NetworkHost) -> None:
        for listening in list(self._listening.values()):
            if listening.host is host:
                listening.close()


def _uncut(link: Link) -> None:
    link.cuts -= 1
