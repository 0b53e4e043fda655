"""The state that all connections of a server share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from ottla.broker.server.frames import ReceiveMemory
from ottla.broker.server.limits import Limits, QuietLog, RequestMemory
from ottla.broker.server.port import Buffers, RequestHandler
from ottla.broker.server.timeout_wheel import TimeoutWheel
from ottla.broker.server.unauthenticated import UnauthenticatedConnections


class OpenConnection(Protocol):
    """A connection, as its server sees it."""

    @property
    def inflight_count(self) -> int:
        """Number of requests without a reply."""
        ...

    @property
    def is_answered(self) -> bool:
        """Whether all replies have been written to the socket, or can no longer be."""
        ...

    def begin_stop(self) -> None:
        """Accepts no more requests and answers the pending ones, then half-closes the connection."""
        ...

    def abort(self) -> None:
        """Closes the connection at once."""
        ...


@dataclass(slots=True)
class ServerContext:
    """The state that all connections of a server share."""

    handler: RequestHandler
    limits: Limits
    loop: asyncio.AbstractEventLoop
    receive_memory: ReceiveMemory
    request_memory: RequestMemory
    wheel: TimeoutWheel
    quiet_log: QuietLog
    unauthenticated: UnauthenticatedConnections
    connections: dict[OpenConnection, None] = field(default_factory=dict)
    coroutines: set[asyncio.Task[Buffers | None]] = field(default_factory=set)
    """Running requests. They finish even if their client is gone: a half-created topic helps nobody."""
