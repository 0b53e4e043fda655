"""The limits of the server for its clients, and the memory that their requests share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ottla.protocol.model.broker_config import BrokerConfig

log = logging.getLogger("ottla.server")

WRITE_HIGH_WATER_BYTES = 1024 * 1024
"""Size of the replies that wait for a slow reader above which no further request of its connection is handled."""
LOG_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The configured limits of a server."""

    frame_bytes_max: int
    connections_max: int
    inflight_max: int
    queued_bytes_max: int
    """A number that is never reached if there is no limit (-1, as in Kafka)."""
    unauthenticated_max: int
    """Maximum number of connections in a TLS handshake or before SASL authentication."""
    authentication_timeout_ms: int
    unauthenticated_frame_bytes_max: int
    idle_ms: int
    """-1: idle connections are never closed."""
    stall_ms: int

    @property
    def shortest_timeout_ms(self) -> int:
        """The shorter of the stall timeout and the idle timeout, if there is one."""
        return self.stall_ms if self.idle_ms < 0 else min(self.stall_ms, self.idle_ms)

    @classmethod
    def of(cls, config: BrokerConfig) -> Limits:
        """Takes the limits from the broker's configuration."""
        return cls(
            frame_bytes_max=config.socket_request_max_bytes,
            connections_max=config.max_connections,
            inflight_max=config.max_inflight_per_connection,
            queued_bytes_max=config.queued_max_request_bytes if config.queued_max_request_bytes > 0 else sys.maxsize,
            unauthenticated_max=config.unauthenticated_connections_max,
            authentication_timeout_ms=config.authentication_timeout_ms,
            unauthenticated_frame_bytes_max=config.sasl_server_max_receive_size,
            idle_ms=config.connections_max_idle_ms,
            stall_ms=config.frame_stall_ms,
        )


class MemoryWaiter(Protocol):
    """A connection that waits for request memory."""

    @property
    def wanted_bytes(self) -> int:
        """The memory that it takes when it continues."""
        ...

    def on_memory_freed(self) -> None:
        """Called once when there is memory again."""
        ...


class RequestMemory:
    """Counts the bytes of requests that are not handled yet, over all connections: whole requests and partial ones.

    Appended records do not count: the log holds them, and the broker's backlog bounds them. So nothing here waits for
    an acknowledgement, and the requests that lead to one (the fetches of followers) never wait for memory.

    Above the limit no connection begins another large request. Partial requests are still read, because completing them
    is what frees memory. If they alone reach a second limit, the connection that needs more is closed. So the memory is
    bounded, and no connection waits for a peer that sends nothing.
    """

    __slots__ = ("_call_soon", "_hard_limit", "_limit", "_waiting", "_wake_is_due", "is_full", "used_bytes")

    def __init__(self, limits: Limits, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.used_bytes = 0
        self.is_full = False
        self._limit = limits.queued_bytes_max
        self._hard_limit = self._limit + max(self._limit, limits.frame_bytes_max)
        """High enough for the largest frame, however low the limit."""
        self._call_soon = call_soon
        self._waiting: dict[MemoryWaiter, None] = {}
        self._wake_is_due = False

    @property
    def spare_bytes(self) -> int:
        """Bytes left below the limit; negative above it."""
        return self._limit - self.used_bytes

    @property
    def is_exhausted(self) -> bool:
        """Whether the second limit is exceeded, so that a connection that needs more is closed."""
        return self.used_bytes > self._hard_limit

    def take(self, byte_count: int) -> None:
        """Takes memory, or gives it back if the number is negative."""
        self.used_bytes += byte_count
        self.is_full = self.used_bytes >= self._limit
        if self._waiting and not self._wake_is_due and not self.is_full:
            self._wake_is_due = True
            self._call_soon(self._wake)

    def wait(self, connection: MemoryWaiter) -> None:
        """Calls the connection once when there is memory again."""
        self._waiting[connection] = None

    def forget(self, connection: MemoryWaiter) -> None:
        """Removes a connection from those that wait, because it was closed."""
        self._waiting.pop(connection, None)

    def _wake(self) -> None:
        """Wakes waiting connections in order of arrival, so that none starves, and only as many as there is memory
        for."""
        self._wake_is_due = False
        spare_bytes = self.spare_bytes
        while self._waiting and spare_bytes > 0 and not self.is_full:
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            spare_bytes -= connection.wanted_bytes
            connection.on_memory_freed()


class QuietLog:
    """Logs each kind of event at most once in some seconds, with the number of suppressed messages."""

    __slots__ = ("_left_out", "_next_at", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._next_at: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warning(self, kind: str, sentence: str) -> None:
        """Logs a warning, or counts it as suppressed."""
        now = self._now()
        if now < self._next_at.get(kind, 0.0):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._next_at[kind] = now + LOG_INTERVAL_S
        left_out = self._left_out.pop(kind, 0)
        log.warning("%s%s", sentence, f" ({left_out} more like this before)" if left_out else "")
