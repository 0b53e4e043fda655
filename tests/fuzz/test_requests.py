"""Damaged requests of every API and version: a decoder raises MalformedRequest or returns a request, nothing else.

The number of cases is bounded and seeded: a failure names the API, and OTTLA_SEED repeats it.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.api.api import Api
from ottla.broker.api.heartbeat import parse_heartbeat
from ottla.broker.api.registry import APIS
from ottla.protocol.wire.fetch import parse_fetch_request
from ottla.protocol.wire.headers import parse_request_header, request_header
from ottla.protocol.wire.primitives import MalformedRequest
from ottla.protocol.wire.produce import parse_produce_request
from ottla.protocol.wire.schema import decode, encode, request_type
from tests.properties.random_messages import random_entity

DAMAGED_PER_VERSION = 60
PEAK_BYTES_MAX = 8 << 20
"""The most that decoding a small frame may allocate: a wrong length must not be trusted."""

_BY_HAND: dict[int, Callable[[memoryview, int], object]] = {
    0: parse_produce_request,
    1: parse_fetch_request,
    12: parse_heartbeat,
}


def _damaged(rng: random.Random, body: bytes) -> bytes:
    out = bytearray(body)
    match rng.randrange(4):
        case 0:
            del out[rng.randint(0, len(out)) :]
        case 1:
            at = rng.randint(0, len(out))
            out[at:at] = rng.randbytes(rng.randint(1, 8))
        case 2:
            out += rng.randbytes(rng.randint(1, 8))
        case _:
            pass
    for _ in range(rng.randint(0, 4) if out else 0):
        out[rng.randrange(len(out))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(out)


def _decoders(key: int, version: int) -> list[Callable[[memoryview], Any]]:
    decoders: list[Callable[[memoryview], Any]] = [lambda body: decode(request_type(key, version), body)]
    if key in _BY_HAND:
        decoders.append(lambda body: _BY_HAND[key](body, version))
    return decoders


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_damaged_bodies(api: Api, seed: int) -> None:
    rng = random.Random(f"{seed}-{api.name}")
    low, high = api.versions
    for version in range(low, high + 1):
        for _ in range(DAMAGED_PER_VERSION):
            body = _damaged(rng, encode(random_entity(rng, request_type(api.key, version))))
            for decoder in _decoders(api.key, version):
                with contextlib.suppress(MalformedRequest):
                    decoder(memoryview(body))


def test_damaged_headers(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3000):
        api = rng.choice(APIS)
        whole = request_header(api.key, rng.randint(0, 20), rng.getrandbits(31), rng.choice([None, "", "client"]))
        with contextlib.suppress(MalformedRequest):
            parse_request_header(memoryview(_damaged(rng, whole)))


@pytest.mark.parametrize("length", [b"\x7f\xff\xff\xff", b"\x00\xff\xff\xff"])
def test_a_length_that_lies_allocates_nothing(length: bytes) -> None:
    decoders = [
        decoder
        for api in APIS
        for version in range(api.versions[0], api.versions[1] + 1)
        for decoder in _decoders(api.key, version)
    ]
    for decoder in decoders:  # imports and set-up of the first call are not measured
        with contextlib.suppress(MalformedRequest):
            decoder(memoryview(bytes(40)))
    tracemalloc.start()
    try:
        for decoder in decoders:
            for start in range(24):
                with contextlib.suppress(MalformedRequest):
                    decoder(memoryview(bytes(start) + length + bytes(16)))
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
    finally:
        tracemalloc.stop()
