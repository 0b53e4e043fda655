"""The gRPC status codes that Ottla uses, and the exceptions that carry them."""

from __future__ import annotations

from enum import IntEnum
from urllib.parse import quote, unquote


class Status(IntEnum):
    """The status of a finished call, with gRPC's names and numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RpcError(Exception):
    """A call ended with a status other than OK. The message is for people, not for programs."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(message or f"gRPC status {status}")
        self.status = status
        self.message = message


class ConnectionLostError(RpcError):
    """The connection ended during the call. The server may or may not have executed it."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.UNAVAILABLE, message)


def encode_status_message(message: str) -> str:
    """Encodes the value of `grpc-message`, which is percent-encoded UTF-8."""
    return quote(message, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


def decode_status_message(text: str) -> str:
    """Decodes the value of `grpc-message`."""
    return unquote(text)
