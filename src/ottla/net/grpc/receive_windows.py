"""The receive windows of a connection and of its streams: how much the peer may still send.

A message is credited to the peer's window only when its receiver has processed it. So a receiver that holds messages
back stops its own sender and no other.
"""

from __future__ import annotations

from ottla.net.grpc.frames import window_update
from ottla.net.grpc.output import Output

CONNECTION_WINDOW_BYTES = 64 * 1024 * 1024
"""Added to the window of a new connection."""
DEFAULT_WINDOW_BYTES = 65535
"""The flow-control window of a new connection, before any WINDOW_UPDATE."""
STREAM_WINDOW_BYTES = 4 * 1024 * 1024
CREDIT_BYTES_MIN = 64 * 1024


class ConnectionWindow:
    """The receive window of a connection, which its streams share."""

    __slots__ = ("_output", "size_bytes")

    def __init__(self, output: Output) -> None:
        self._output = output
        self.size_bytes = CONNECTION_WINDOW_BYTES + DEFAULT_WINDOW_BYTES
        """How many bytes the peer may still send, on all streams together."""

    def widen(self, size_bytes: int) -> None:
        """Lets the peer send as many bytes more."""
        self.size_bytes += size_bytes
        self._output.write(window_update(0, size_bytes))


class StreamWindow:
    """The receive window of one stream."""

    __slots__ = (
        "_connection",
        "_credit_due_bytes",
        "_output",
        "_stream_id",
        "early_credit_bytes",
        "size_bytes",
        "uncredited_bytes",
    )

    def __init__(self, connection: ConnectionWindow, output: Output, stream_id: int) -> None:
        self._connection = connection
        self._output = output
        self._stream_id = stream_id
        self.size_bytes = STREAM_WINDOW_BYTES
        """How many bytes the peer may still send."""
        self.uncredited_bytes = 0
        """Received bytes that are not credited yet. The peer's window is smaller by as much."""
        self._credit_due_bytes = 0
        """Credit that the peer has not been sent yet. Small credits are combined into one WINDOW_UPDATE."""
        self.early_credit_bytes = 0
        """Credit given for parts of an incomplete message. It is deducted from the next credits."""

    def credit(self, size_bytes: int) -> None:
        """Credits processed bytes to the peer's window. Bytes that were credited early are not credited again."""
        early = min(size_bytes, self.early_credit_bytes)
        self.early_credit_bytes -= early
        size_bytes = min(size_bytes - early, self.uncredited_bytes)
        self.uncredited_bytes -= size_bytes
        self._credit_due_bytes += size_bytes
        if self._credit_due_bytes >= CREDIT_BYTES_MIN and not self._output.is_closed:
            due, self._credit_due_bytes = self._credit_due_bytes, 0
            self.size_bytes += due
            self._connection.widen(due)
            self._output.write(window_update(self._stream_id, due))
            self._output.flush_soon()

    def give_back(self) -> None:
        """Returns to the connection's window what a finished stream held of it."""
        held, self.uncredited_bytes, self._credit_due_bytes = self.uncredited_bytes + self._credit_due_bytes, 0, 0
        if held and not self._output.is_closed:
            self._connection.widen(held)
            self._output.flush_soon()
