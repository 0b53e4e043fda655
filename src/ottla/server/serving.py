"""What the connections of one server share, and what a handler may answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.ports import ReadOnlyBuffer
from ottla.server.frames import ReceiveMemory
from ottla.server.limits import Limits, QuietLog, RequestMemory
from ottla.server.wheel import TimeoutWheel

if TYPE_CHECKING:
    from ottla.server.connection import Connection

Buffers = list[ReadOnlyBuffer]
Later = asyncio.Future[Buffers | None]
Outcome = Buffers | Later | Coroutine[Any, Any, Buffers | None] | None
Dispatch = Callable[[Any, Any, memoryview], Any]
"""From broker, connection state and frame to an `Outcome`."""


@dataclass(slots=True)
class Serving:
    broker: Any
    dispatch: Dispatch
    new_state: Callable[[str], Any]
    limits: Limits
    loop: asyncio.AbstractEventLoop
    receive_memory: ReceiveMemory
    request_memory: RequestMemory
    wheel: TimeoutWheel
    quiet_log: QuietLog
    connections: dict[Connection, None] = field(default_factory=dict)
    coroutines: set[asyncio.Task[Buffers | None]] = field(default_factory=set)
    """They end even if their client is gone: a half-created topic helps nobody."""
