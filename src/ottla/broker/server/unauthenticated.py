"""Limits connections whose client is not authenticated yet: those in a TLS handshake or before SASL authentication.

Such a connection ends after a timeout. When there are too many, the oldest one ends first. An honest client completes
its handshake within milliseconds, so the oldest connections are those of clients that only hold them open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.broker.server.limits import Limits

End = Callable[[str], None]
"""Ends a connection, with the reason for the log."""


class UnauthenticatedConnections:
    """The connections of a server before authentication, the oldest first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        self._loop = loop
        self._count_max = limits.unauthenticated_max
        self._timeout_ms = limits.authentication_timeout_ms
        self._pending: dict[object, tuple[float, End]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.ended_count = 0
        """Number of connections that ended here before they were authenticated."""

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, connection: object, end: End) -> None:
        """Adds a new connection."""
        if len(self._pending) >= self._count_max:
            self._end_oldest(
                f"is closed before authentication: {self._count_max} others are not authenticated either "
                "(ottla.unauthenticated.connections.max)"
            )
        self._pending[connection] = (self._loop.time() + self._timeout_ms / 1000, end)
        self._arm()

    def replace_end(self, connection: object, end: End) -> None:
        """Changes how a connection is ended, when its TLS handshake is over."""
        found = self._pending.get(connection)
        if found is not None:
            self._pending[connection] = (found[0], end)

    def discard(self, connection: object) -> None:
        """Removes a connection that is authenticated or closed."""
        self._pending.pop(connection, None)

    def stop(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None and self._pending:
            deadline_s, _ = next(iter(self._pending.values()))
            self._timer = self._loop.call_at(deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        while self._pending and next(iter(self._pending.values()))[0] <= now_s:
            self._end_oldest(
                f"did not authenticate within {self._timeout_ms} ms (ottla.authentication.timeout.ms) and is closed"
            )
        self._arm()

    def _end_oldest(self, reason: str) -> None:
        connection = next(iter(self._pending))
        _, end = self._pending.pop(connection)
        self.ended_count += 1
        end(reason)
