"""The state that all connections of a server share, and the types of a handler's reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.broker.partition.backlog import Backlog
from ottla.broker.server.frames import ReceiveMemory
from ottla.broker.server.limits import Limits, QuietLog, RequestMemory
from ottla.broker.server.timeout_wheel import TimeoutWheel
from ottla.ports import ReadOnlyBuffer

if TYPE_CHECKING:
    from ottla.broker.server.connection import Connection

Buffers = list[ReadOnlyBuffer]
Later = asyncio.Future[Buffers | None]
Outcome = Buffers | Later | Coroutine[Any, Any, Buffers | None] | Backlog | None
Dispatch = Callable[[Any, Any, memoryview], Any]
"""Maps broker, connection state and frame to an `Outcome`."""

DispatchRun = Callable[[Any, Any, Sequence[memoryview], int, int], tuple[bytes | asyncio.Future[bytes] | None, int]]
"""Takes broker, connection state, frames, the index of the first frame and a limit. Returns the replies of as many
frames as can be handled together, each with its size in front, and their number; 0 if the first is for `Dispatch`."""


def no_runs(
    _broker: Any, _state: Any, _frames: Sequence[memoryview], _at: int, _count_max: int
) -> tuple[bytes | asyncio.Future[bytes] | None, int]:
    """A `DispatchRun` that leaves every frame to `Dispatch`."""
    return None, 0


@dataclass(slots=True)
class ServerContext:
    """The state that all connections of a server share."""

    broker: Any
    dispatch: Dispatch
    dispatch_run: DispatchRun
    new_state: Callable[[str], Any]
    limits: Limits
    loop: asyncio.AbstractEventLoop
    receive_memory: ReceiveMemory
    request_memory: RequestMemory
    wheel: TimeoutWheel
    quiet_log: QuietLog
    connections: dict[Connection, None] = field(default_factory=dict)
    coroutines: set[asyncio.Task[Buffers | None]] = field(default_factory=set)
    """Running requests. They finish even if their client is gone: a half-created topic helps nobody."""
