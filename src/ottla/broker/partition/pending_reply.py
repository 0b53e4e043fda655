"""A reply that is not ready yet.

It is a future without the event loop: `complete` calls its connection at once instead of in the next iteration of the
loop. The acknowledgement of a record is then written to the socket in the same iteration as the message that caused
it, without a poll in between.

The compiled version (`_pending_reply.pyx`) is used where it is built. The plain Python version here is the fallback,
and the oracle for tests of the compiled one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Generic, TypeVar

T = TypeVar("T")


class PlainPendingReply(Generic[T]):
    """One reply, or the replies to a run. It ends once: completed, failed or cancelled."""

    __slots__ = ("_error", "_on_ready", "_reply", "on_end")

    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self._reply: T | None = None
        self._error: BaseException | None = None
        self._on_ready: Callable[[PlainPendingReply[T]], None] | None = None
        self.on_end = on_end
        """Called when it ends, before the connection is."""

    def done(self) -> bool:
        """Whether it has ended."""
        return self._reply is not None or self._error is not None

    def result(self) -> T:
        """Returns the reply. Raises its error, or CancelledError if it was cancelled."""
        if self._reply is None:
            raise self._error if self._error is not None else asyncio.InvalidStateError
        return self._reply

    def complete(self, reply: T) -> None:
        """Takes the reply and calls the connection that waits for it. The connection sends it, but handles no further
        request before this call returns. Does nothing if it has ended already."""
        if not self.done():
            self._reply = reply
            self._end()

    def fail(self, error: BaseException) -> None:
        """Ends it without a reply; the connection is closed. Does nothing if it has ended already."""
        if not self.done():
            self._error = error
            self._end()

    def cancel(self) -> None:
        """Drops it: nobody waits for the reply any more."""
        self._on_ready = None
        self.fail(asyncio.CancelledError())

    def when_ready(self, callback: Callable[[PlainPendingReply[T]], None]) -> None:
        """Sets the function to call when it ends, unless it is cancelled. It must not have ended yet."""
        self._on_ready = callback

    def _end(self) -> None:
        if self.on_end is not None:
            self.on_end()
        if self._on_ready is not None:
            self._on_ready(self)

    def __await__(self) -> Generator[object, None, T]:
        if not self.done():
            woken = asyncio.get_running_loop().create_future()
            self._on_ready = lambda _: None if woken.done() else woken.set_result(None)
            yield from woken
        return self.result()


if TYPE_CHECKING:
    PendingReply = PlainPendingReply
else:
    try:
        from ottla.broker.partition._pending_reply import PendingReply
    except ImportError:
        PendingReply = PlainPendingReply
