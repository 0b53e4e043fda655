"""Ottla's codecs compared with kio's, for every message and version that kio has."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from ottla.protocol.wire.headers import is_flexible
from ottla.protocol.wire.primitives import MalformedRequest, Writer
from ottla.protocol.wire.schema import codec, decode, encode
from tests.properties.random_messages import random_entity


def _every_message() -> Iterator[Any]:
    for key, name in api_key_map.items():
        for version in schema_name_map[name]:
            yield pytest.param(key, version, id=f"{name}-v{version}")


def _types(key: int, version: int) -> tuple[Any, Any]:
    return load_request_schema(key, version), load_response_schema(key, version)


def _encoded_by_kio(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize(("key", "version"), list(_every_message()))
def test_codecs_agree_with_kio(key: int, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for entity_type in _types(key, version):
        assert entity_type.__flexible__ == is_flexible(key, version)
        for _ in range(4):
            entity = random_entity(rng, entity_type)
            encoded = encode(entity)
            assert encoded == _encoded_by_kio(entity)
            assert len(encoded) >= codec(entity_type).bytes_min
            assert decode(entity_type, memoryview(encoded)) == (entity, len(encoded))
            assert entity_reader(entity_type)(encoded, 0) == (entity, len(encoded))


@pytest.mark.parametrize(("key", "version"), list(_every_message()))
def test_a_message_cut_anywhere_is_malformed(key: int, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for entity_type in _types(key, version):
        encoded = encode(random_entity(rng, entity_type))
        for cut in {rng.randrange(len(encoded)) for _ in range(8)} if encoded else ():
            with pytest.raises(MalformedRequest):
                decode(entity_type, memoryview(encoded)[:cut])


def test_unknown_tagged_fields_are_skipped() -> None:
    """A newer client sends unknown fields before and after the known ones."""
    request_type = load_request_schema(1, 17)
    request = random_entity(random.Random(7), request_type)
    encoded = bytearray(encode(request))
    plain_end = _end_of_plain_fields(request)
    writer = Writer()
    known = memoryview(encoded)[plain_end + 1 :]
    writer.uvarint(encoded[plain_end] + 1)
    writer.out += known
    writer.uvarint(9000)
    writer.compact_array_length(2)
    writer.out += b"new"
    extended = bytes(encoded[:plain_end]) + bytes(writer.out)
    assert decode(request_type, memoryview(extended)) == (request, len(extended))


def _end_of_plain_fields(request: Any) -> int:
    """The tagged section is the part that differs in length when every tagged field has its default."""
    tagged = {field.name for field in fields(request) if "tag" in field.metadata}
    bare = type(request)(**{f.name: getattr(request, f.name) for f in fields(request) if f.name not in tagged})
    return len(encode(bare)) - 1


def test_a_huge_array_is_refused_before_it_is_read() -> None:
    delete_topics = load_request_schema(20, 3)
    with pytest.raises(MalformedRequest, match="does not fit"):
        decode(delete_topics, memoryview(b"\x7f\xff\xff\xff" + b"\0" * 100))
