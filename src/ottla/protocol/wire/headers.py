"""Request and response headers.

In flexible versions of an API, tagged fields follow the request header and the response header. The response header of
ApiVersions is an exception: a client that asks for a version that the broker does not have must be able to read the
reply. The client id keeps the legacy encoding in every version.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from ottla.protocol.wire.primitives import DECODE_ERRORS, I32, MalformedRequest, Writer, skip_tagged_fields_at

API_VERSIONS_KEY = 18

_KEYS_BY_FIRST_FLEXIBLE_VERSION: dict[int, tuple[int, ...]] = {
    1: (27, 44, 48, 49, 53, 54),
    2: (21, 22, 29, 30, 31, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43),
    3: (10, 16, 18, 24, 25, 26, 28),
    4: (12, 13, 14, 20, 23, 32),
    5: (15, 19),
    6: (2, 9, 11),
    8: (8,),
    9: (0, 3),
    12: (1,),
}
"""The first flexible version of each API. API keys below 45 that are missing here, and those in `_NEVER_FLEXIBLE`, have
no flexible version; all later APIs are flexible from their first."""

FIRST_FLEXIBLE_VERSION = {key: first for first, keys in _KEYS_BY_FIRST_FLEXIBLE_VERSION.items() for key in keys}
_NEVER_FLEXIBLE = frozenset({17, 47})
_FIXED_PART = Struct(">hhih")
_KEYS = Struct(">hhi")


class RequestHeader(NamedTuple):
    """A parsed request header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int
    """Position of the body in the frame."""


def is_flexible(api_key: int, version: int) -> bool:
    """Reports whether a version of an API uses the flexible encoding."""
    first = FIRST_FLEXIBLE_VERSION.get(api_key)
    if first is not None:
        return version >= first
    return api_key >= 45 and api_key not in _NEVER_FLEXIBLE


def parse_request_header(frame: memoryview) -> RequestHeader:
    """Parses the header of a frame, without its size. Raises MalformedRequest."""
    try:
        api_key, version, correlation_id, length = _FIXED_PART.unpack_from(frame)
        client_id = None
        at = _FIXED_PART.size
        if length != -1:
            end = at + length
            if length < 0 or end > len(frame):
                raise MalformedRequest(f"invalid client id length of {length} bytes")
            client_id = str(frame[at:end], "utf-8")
            at = end
        if is_flexible(api_key, version):
            at = at + 1 if frame[at] == 0 else skip_tagged_fields_at(frame, at)
        return RequestHeader(api_key, version, correlation_id, client_id, at)
    except DECODE_ERRORS as error:
        raise MalformedRequest(f"request header: {error}") from None


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encodes the header that a client sends before the body. It does not include the frame's size."""
    return _KEYS.pack(api_key, version, correlation_id) + _rest_of_request_header(
        client_id, is_flexible(api_key, version)
    )


@lru_cache(1024)
def _rest_of_request_header(client_id: str | None, flexible: bool) -> bytes:
    writer = Writer()
    writer.nullable_string(client_id)
    if flexible:
        writer.no_tagged_fields()
    return bytes(writer.out)


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """Encodes the header of a response."""
    if api_key != API_VERSIONS_KEY and is_flexible(api_key, version):
        return I32.pack(correlation_id) + b"\x00"
    return I32.pack(correlation_id)


def parse_response_header(api_key: int, version: int, frame: memoryview) -> tuple[int, int]:
    """Returns the correlation id and the position of the body."""
    try:
        (correlation_id,) = I32.unpack_from(frame)
        if api_key == API_VERSIONS_KEY or not is_flexible(api_key, version):
            return correlation_id, I32.size
        is_plain = frame[I32.size] == 0
        return correlation_id, I32.size + 1 if is_plain else skip_tagged_fields_at(frame, I32.size)
    except DECODE_ERRORS as error:
        raise MalformedRequest(f"response header: {error}") from None
