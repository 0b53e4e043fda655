"""Primitives and headers: edge cases of the encodings, and invalid input."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from ottla.protocol.wire.headers import (
    is_flexible,
    parse_request_header,
    parse_response_header,
    request_header,
    response_header,
)
from ottla.protocol.wire.primitives import MalformedRequest, Reader, Writer, decoding, uvarint_at, uvarint_bytes


def _written(write: Callable[[Writer], None]) -> memoryview:
    writer = Writer()
    write(writer)
    return memoryview(bytes(writer.out))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**28, 2**32 - 1])
def test_unsigned_varints(value: int) -> None:
    data = _written(lambda writer: writer.uvarint(value))
    assert Reader(data).uvarint() == value
    assert uvarint_at(data, 0) == (value, len(data))
    assert uvarint_bytes(value) == data


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, b"\0"), (-1, b"\x01"), (1, b"\x02"), (-64, b"\x7f"), (-(2**31), b"\xff\xff\xff\xff\x0f")]
)
def test_signed_varints(value: int, encoded: bytes) -> None:
    assert _written(lambda writer: writer.varint(value)) == encoded
    assert Reader(memoryview(encoded)).varint() == value


@pytest.mark.parametrize("value", [0, -1, 2**63 - 1, -(2**63)])
def test_signed_varlongs(value: int) -> None:
    assert Reader(_written(lambda writer: writer.varlong(value))).varlong() == value


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x1f", b"\x80" * 9])
def test_a_varint_that_is_too_long_or_too_large(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        Reader(memoryview(data)).uvarint()
    with pytest.raises(MalformedRequest):
        uvarint_at(memoryview(data), 0)


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (Reader.string, b"\xff\xff"),
        (Reader.string, b"\xff\xfe"),
        (Reader.nullable_string, b"\xff\xfe"),
        (Reader.string, b"\0\x05abcd"),
        (Reader.compact_string, b"\0"),
        (Reader.compact_string, b"\x06abcd"),
        (Reader.string, b"\0\x01\xff"),
        (Reader.view, b"\xff\xff\xff\xff"),
        (Reader.nullable_view, b"\xff\xff\xff\xfe"),
        (Reader.view, b"\x7f\xff\xff\xffabc"),
        (Reader.compact_view, b"\0"),
        (Reader.array_length, b"\xff\xff\xff\xfe"),
        (Reader.array_length, b"\0\0\0\x05abcd"),
        (Reader.compact_array_length, b"\x06abcd"),
        (Reader.uuid, b"short"),
        (Reader.i64, b"short"),
        (Reader.boolean, b""),
        (Reader.uvarint, b"\x80"),
        (Reader.skip_tagged_fields, b"\x01\x00\x05abcd"),
        (Reader.skip_tagged_fields, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_what_is_malformed(read: Callable[[Reader], object], data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decoding(read, Reader(memoryview(data)))


def test_nothing_is_none_in_each_encoding() -> None:
    assert Reader(memoryview(b"\xff\xff")).nullable_string() is None
    assert Reader(memoryview(b"\0")).nullable_compact_string() is None
    assert Reader(memoryview(b"\xff\xff\xff\xff")).nullable_view() is None
    assert Reader(memoryview(b"\0")).nullable_compact_view() is None
    assert Reader(memoryview(b"\xff\xff\xff\xff")).array_length() == -1
    assert Reader(memoryview(b"\0")).compact_array_length() == -1
    assert Reader(memoryview(bytes(16))).uuid() is None
    assert Reader(memoryview(UUID(int=5).bytes)).uuid() == UUID(int=5)


def test_tagged_fields_are_skipped_whole() -> None:
    reader = Reader(memoryview(b"\x02\x00\x03abc\x85\x01\x00" + b"rest"))
    reader.skip_tagged_fields()
    assert bytes(reader.take(reader.remaining)) == b"rest"


def test_an_array_is_bounded_by_the_size_of_its_items() -> None:
    data = memoryview(b"\0\0\0\x03" + bytes(23))
    assert Reader(data).array_length(7) == 3
    with pytest.raises(MalformedRequest):
        Reader(data).array_length(8)


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "ü" * 100])
@pytest.mark.parametrize(("key", "version"), [(0, 8), (0, 9), (3, 12), (17, 1), (18, 3), (47, 0), (75, 0)])
def test_request_headers(key: int, version: int, client_id: str | None) -> None:
    encoded = request_header(key, version, 2**31 - 1, client_id)
    header = parse_request_header(memoryview(encoded + b"body"))
    assert header == (key, version, 2**31 - 1, client_id, len(encoded))


def test_a_request_header_with_unknown_tagged_fields() -> None:
    frame = request_header(3, 9, 1, "c")[:-1] + b"\x01\x09\x02xx" + b"body"
    header = parse_request_header(memoryview(frame))
    assert frame[header.body_at :] == b"body"


@pytest.mark.parametrize("cut", range(11))
def test_a_cut_request_header(cut: int) -> None:
    with pytest.raises(MalformedRequest):
        parse_request_header(memoryview(request_header(3, 9, 1, "c")[:cut]))


def test_the_header_of_an_api_versions_response_is_never_flexible() -> None:
    assert is_flexible(18, 3)
    assert response_header(18, 3, 5) == b"\0\0\0\x05"
    assert response_header(3, 9, 5) == b"\0\0\0\x05\0"
    assert response_header(3, 8, 5) == b"\0\0\0\x05"
    assert parse_response_header(18, 3, memoryview(b"\0\0\0\x05")) == (5, 4)
    assert parse_response_header(3, 9, memoryview(b"\0\0\0\x05\0")) == (5, 5)
