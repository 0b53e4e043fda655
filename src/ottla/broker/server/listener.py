"""Accepts connections.

The server accepts connections itself instead of leaving it to the event loop. A process without free file descriptors
must neither spin on a listening socket that is always ready nor lose it, and an excess connection is closed before it
costs anything.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from ottla.broker.server.limits import QuietLog
from ottla.broker.server.listener_kind import ListenerKind

BACKLOG = 4096
ACCEPTS_A_TURN = 64
"""Maximum number of accepts per iteration of the event loop, so that a storm of connections does not starve existing
ones."""
PAUSE_S = 0.1
"""How long to leave the listening socket alone when the process or the system has no resources for a connection."""

_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_NOT_OURS = {errno.ENETDOWN, errno.EPROTO, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPERM}
"""Errors that accept reports for a connection that has already failed."""


def bind(host: str, port: int, *, listens: bool = True) -> list[socket.socket]:
    """Listens on each address of the host. With port 0, all of them use the port that the system chose for the
    first."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(
            errno.EADDRNOTAVAIL, f"cannot listen on {host}:{port}: the host name is unknown ({error.strerror})"
        ) from error
    listening: list[socket.socket] = []
    failure: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            listening.append(_bound(family, address, port or _port_of(listening), listens))
        except OSError as error:
            failure = error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                break
    if listening and (failure is None or failure.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)):
        return listening
    for listener in listening:
        listener.close()
    assert failure is not None
    raise _explained(failure, host, port) from failure


def check_address(host: str, port: int) -> None:
    """Raises the OSError of `bind` if the address is not available now. No client can connect in the meantime."""
    for bound in bind(host, port, listens=False):
        bound.close()


def _port_of(listening: list[socket.socket]) -> int:
    return int(listening[0].getsockname()[1]) if listening else 0


def _bound(family: int, address: tuple[object, ...], port: int, listens: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address[0], port, *address[2:]))
        if listens:
            listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _explained(error: OSError, host: str, port: int) -> OSError:
    what_to_do = {
        errno.EADDRINUSE: "another process listens there; stop it, or choose another port (0: the system chooses one)",
        errno.EACCES: "this user may not; choose a port from 1024 on",
        errno.EADDRNOTAVAIL: "this machine has no such address; choose one of its own, or 127.0.0.1",
    }.get(error.errno or 0, os.strerror(error.errno or 0))
    return OSError(error.errno, f"cannot listen on {host or '*'}:{port}: {what_to_do}")


class Listener:
    """The listening sockets. Each accepted socket is passed to `on_accepted`, with the address of its peer and the
    listener that it belongs to."""

    def __init__(
        self, on_accepted: Callable[[socket.socket, tuple[str, int], ListenerKind], None], quiet_log: QuietLog
    ) -> None:
        self._on_accepted = on_accepted
        self._quiet_log = quiet_log
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._kinds: dict[socket.socket, ListenerKind] = {}
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    def open(self, host: str, port: int, kind: ListenerKind) -> int:
        """Listens on an address and returns its port. May be called several times to add addresses."""
        added = bind(host, port)
        self._sockets += added
        for listener in added:
            self._kinds[listener] = kind
            self._loop.add_reader(listener, self._on_readable, listener, kind)
        return _port_of(added)

    def close(self) -> None:
        """Stops listening."""
        for pause in self._pauses.values():
            pause.cancel()
        for listener in self._sockets:
            if listener not in self._pauses:
                self._loop.remove_reader(listener)
            listener.close()
        self._sockets = []
        self._pauses = {}

    def _on_readable(self, listener: socket.socket, kind: ListenerKind) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    self._pause(listener, error)
                    return
                continue
            self._on_accepted(accepted, address[:2], kind)

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        advice = "raise the limit of open files (ulimit -n)" if error.errno in _OUT_OF_RESOURCES else "will try again"
        self._quiet_log.warning("accept", f"cannot accept connections: {error.strerror}; {advice}")
        self._loop.remove_reader(listener)
        self._pauses[listener] = self._loop.call_later(PAUSE_S, self._go_on, listener)

    def _go_on(self, listener: socket.socket) -> None:
        del self._pauses[listener]
        self._loop.add_reader(listener, self._on_readable, listener, self._kinds[listener])
