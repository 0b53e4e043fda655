"""A raw socket client, for requests that no client library would send."""

from __future__ import annotations

import contextlib
import socket
import struct
from types import TracebackType
from typing import Self

from ottla.protocol.wire.headers import request_header
from ottla.testing.broker_process import BrokerProcess

TIMEOUT_S = 30.0
API_VERSIONS, METADATA = 18, 3


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(api_key: int, version: int, body: bytes = b"", correlation_id: int = 1) -> bytes:
    return framed(request_header(api_key, version, correlation_id, "stranger") + body)


class Stranger:
    def __init__(self, broker: BrokerProcess) -> None:
        self._socket = socket.create_connection((broker.host, broker.port), TIMEOUT_S)

    def send(self, data: bytes) -> None:
        """Sends as much as the broker accepts: it may close the connection in the middle."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Closes the connection with a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def reply(self) -> bytes | None:
        """Returns the next reply without its size; None if the broker closed the connection."""
        size = self._receive(4)
        return None if size is None else self._receive(struct.unpack(">i", size)[0])

    def _receive(self, byte_count: int) -> bytes | None:
        received = bytearray()
        while len(received) < byte_count:
            try:
                piece = self._socket.recv(byte_count - len(received))
            except ConnectionError:
                return None
            if not piece:
                return None
            received += piece
        return bytes(received)

    def is_served(self) -> bool:
        self.send(request(API_VERSIONS, 0, correlation_id=77))
        reply = self.reply()
        return reply is not None and reply[:6] == struct.pack(">ih", 77, 0)

    def is_turned_away(self) -> bool:
        """Returns whether the broker closed the connection without a reply."""
        return self.reply() is None

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
