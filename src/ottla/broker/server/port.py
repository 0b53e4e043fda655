"""The port through which the server passes requests to the broker, with the types of the replies.

The server knows nothing about APIs. `ottla.broker.api.request_handler` implements the port for a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

from ottla.broker.endpoints import ClientAddress
from ottla.broker.partition.backlog import Backlog
from ottla.ports import ReadOnlyBuffer

Buffers = list[ReadOnlyBuffer]
Later = asyncio.Future[Buffers]
AsyncReply = Coroutine[object, None, Buffers | None]
Outcome = Buffers | Later | AsyncReply | Backlog | None
RunReplies = bytes | asyncio.Future[bytes]
"""The replies to a run of requests, each with its size in front."""


class ConnectionHandler(Protocol):
    """Handles the requests of one connection, in the order of the calls."""

    def begin(self, transport: asyncio.BaseTransport, rebind: Callable[[bool], None], /) -> bool:
        """Called once for a connection of a listener that encrypts or authenticates, when its transport is ready.
        Returns whether the client is authenticated already. When that changes, calls `rebind` with the new state:
        `handle` and `handle_run` are others then."""
        ...

    def end(self) -> None:
        """Called once after `begin`, when the connection is closed."""
        ...

    @property
    def is_of_broker(self) -> bool:
        """Whether another broker replicates through this connection. Its requests never wait for memory."""
        ...

    def handle(self, frame: memoryview, /) -> Outcome:
        """Handles one request; `ottla.broker.server.connection` explains the outcomes. Raises MalformedRequest if the
        connection must be closed."""
        ...

    def handle_run(self, frames: Sequence[memoryview], at: int, count_max: int, /) -> tuple[RunReplies | None, int]:
        """Handles as many of the frames from `at` on as can be handled together, at most `count_max`. Returns their
        replies and their number; 0 if the first frame is for `handle`."""
        ...


class RequestHandler(Protocol):
    """Handles the requests of all connections of a server."""

    def connect(self, client: ClientAddress, /) -> ConnectionHandler:
        """Returns the handler of a new connection."""
        ...

    def begin_shutdown(self) -> None:
        """Called when the server stops and accepts no more requests: requests that wait for data are answered now."""
        ...
