"""Our codecs against kio's own, for every message and version that kio has."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from ottla.wire.headers import is_flexible
from ottla.wire.primitives import MalformedRequest, Writer
from ottla.wire.schema import codec, decode, encode

_PRIMITIVES: dict[str, Callable[[random.Random], object]] = {
    "bool": lambda rng: rng.random() < 0.5,
    "int8": lambda rng: rng.randint(-(2**7), 2**7 - 1),
    "int16": lambda rng: rng.randint(-(2**15), 2**15 - 1),
    "uint16": lambda rng: rng.randint(0, 2**16 - 1),
    "int32": lambda rng: rng.choice([0, -1, rng.randint(-(2**31), 2**31 - 1)]),
    "int64": lambda rng: rng.choice([0, -1, rng.randint(-(2**63), 2**63 - 1)]),
    "float64": lambda rng: rng.uniform(-1e300, 1e300),
    "string": lambda rng: rng.choice(["", "a", "topic-1", "héllo wörld ✓", "x" * rng.randint(0, 300)]),
    "bytes": lambda rng: rng.randbytes(rng.choice([0, 1, 127, 200])),
    "records": lambda rng: rng.randbytes(rng.choice([0, 1, 61, 128])),
    "uuid": lambda rng: UUID(int=rng.getrandbits(128) | 1),
    "error_code": lambda rng: rng.choice(list(ErrorCode)),
    "timedelta_i32": lambda rng: timedelta(milliseconds=rng.randint(-(2**31), 2**31 - 1)),
    "timedelta_i64": lambda rng: timedelta(milliseconds=rng.randint(-(2**40), 2**40)),
    "datetime_i64": lambda rng: datetime.fromtimestamp(rng.randint(0, 2**33), UTC),
}


def _random_value(rng: random.Random, type_: Any, kafka_type: str | None, tagged: bool) -> object:
    args = get_args(type_)
    if NoneType in args:
        if rng.random() < 0.3 and not tagged:
            return None
        (type_,) = (arg for arg in args if arg is not NoneType)
    if get_origin(type_) is tuple:
        item = get_args(type_)[0]
        return tuple(_random_value(rng, item, kafka_type, tagged) for _ in range(rng.choice([0, 1, 2, 3])))
    if is_dataclass(type_):
        return random_entity(rng, type_)
    assert kafka_type is not None
    return _PRIMITIVES[kafka_type](rng)


def random_entity(rng: random.Random, entity_type: Any) -> Any:
    values = {}
    for field in fields(entity_type):
        tagged = "tag" in field.metadata
        if tagged and field.default is not MISSING and rng.random() < 0.5:
            continue
        values[field.name] = _random_value(rng, field.type, field.metadata.get("kafka_type"), tagged)
    return entity_type(**values)


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
    """A newer client sends fields that we have never heard of, before and after those that we know."""
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
    """The tagged section is what differs in length when every tagged field has its default."""
    tagged = {field.name for field in fields(request) if "tag" in field.metadata}
    bare = type(request)(**{f.name: getattr(request, f.name) for f in fields(request) if f.name not in tagged})
    return len(encode(bare)) - 1


def test_a_huge_array_is_refused_before_it_is_read() -> None:
    delete_topics = load_request_schema(20, 3)
    with pytest.raises(MalformedRequest, match="does not fit"):
        decode(delete_topics, memoryview(b"\x7f\xff\xff\xff" + b"\0" * 100))
