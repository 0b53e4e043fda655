"""Random entities of kio's schema: every field has a random value of its type."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.schema.errors import ErrorCode

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
