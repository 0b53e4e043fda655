"""The status codes of gRPC that are used here, and the error that carries one."""

from __future__ import annotations

from enum import IntEnum
from urllib.parse import quote, unquote


class Status(IntEnum):
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
    """A call ended with another status than OK. The message is for a person."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(message or f"gRPC status {status}")
        self.status = status
        self.message = message


class ConnectionLostError(RpcError):
    """The connection ended before the call did: nobody knows what became of it."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.UNAVAILABLE, message)


def encode_status_message(message: str) -> str:
    """`grpc-message` is percent-encoded UTF-8."""
    return quote(message, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


def decode_status_message(text: str) -> str:
    return unquote(text)
