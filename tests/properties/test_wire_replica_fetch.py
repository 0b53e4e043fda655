"""The fast path of a fetch between brokers produces the same bytes as the general one."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from ottla.protocol.wire import fetch, fetch_client, replica_fetch
from ottla.protocol.wire.fetch import (
    FetchPartition,
    FetchRequest,
    PartitionData,
    encode_fetch_response,
    parse_fetch_request,
)
from ottla.protocol.wire.fetch_client import encode_fetch_request, parse_fetch_response
from ottla.protocol.wire.primitives import MalformedRequest

SEEDS = range(40)
VERSION = replica_fetch.VERSION


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The general path only."""

    def take() -> None:
        monkeypatch.setattr(replica_fetch, "VERSION", -1)

    return take


def _i64(rng: random.Random) -> int:
    return rng.choice([-1, 0, 127, 128, rng.randint(0, 2**62)])


def _i32(rng: random.Random) -> int:
    return rng.choice([-1, 0, rng.randint(0, 2**31 - 1)])


def _request(rng: random.Random) -> FetchRequest:
    partition = FetchPartition(
        _i32(rng), _i32(rng), _i64(rng), _i32(rng), _i64(rng), _i32(rng), None, _i64(rng), abs(_i64(rng))
    )
    return FetchRequest(
        rng.randint(0, 9),
        _i32(rng),
        _i32(rng),
        _i32(rng),
        0,
        _i32(rng),
        _i32(rng),
        [(UUID(int=rng.getrandbits(128) | 1), [partition])],
        [],
        replica_epoch=_i64(rng),
    )


def _answer(rng: random.Random) -> tuple[int, list[tuple[UUID | str, list[PartitionData]]]]:
    records = [memoryview(rng.randbytes(rng.choice([1, 61, 130]))) for _ in range(rng.randint(1, 3))]
    size = sum(map(len, records))
    marks = _i32(rng), rng.choice([0, 6]), _i64(rng), _i64(rng), _i64(rng)
    data = PartitionData(*marks, records=records, records_size=size)
    return _i32(rng), [(UUID(int=rng.getrandbits(128) | 1), [data])]


@pytest.mark.parametrize("seed", SEEDS)
def test_requests(seed: int, long_way: Any) -> None:
    request = _request(random.Random(seed))
    assert fetch_client._encode_one(request) is not None
    short = encode_fetch_request(VERSION, request)
    assert replica_fetch.unpack_request(memoryview(short)) is not None
    parsed = parse_fetch_request(memoryview(short), VERSION)
    long_way()
    assert encode_fetch_request(VERSION, request) == short
    assert parse_fetch_request(memoryview(short), VERSION) == parsed == request


@pytest.mark.parametrize("seed", SEEDS)
def test_answers(seed: int, long_way: Any) -> None:
    session_id, topics = _answer(random.Random(seed))
    ((topic, (data,)),) = topics
    assert fetch._response_of_one(session_id, topic, data) is not None
    short = b"".join(encode_fetch_response(VERSION, 0, 0, session_id, topics))
    assert replica_fetch.unpack_answer(memoryview(short)) is not None
    parsed = parse_fetch_response(memoryview(short), VERSION)
    long_way()
    assert b"".join(encode_fetch_response(VERSION, 0, 0, session_id, topics)) == short
    assert parse_fetch_response(memoryview(short), VERSION) == parsed
    assert parsed.topics[0][1][0].records == b"".join(data.records)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_damaged_means_the_same_on_both_ways(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is changed in turn: the fast path must not take a message as plain that is not."""
    rng = random.Random(seed)
    request = bytearray(encode_fetch_request(VERSION, _request(rng)))
    session_id, topics = _answer(rng)
    answer = bytearray(b"".join(encode_fetch_response(VERSION, 0, 0, session_id, topics)))
    for body, parse in ((request, parse_fetch_request), (answer, parse_fetch_response)):
        for at in range(len(body)):
            kept, body[at] = body[at], rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF])
            short = _parsed(parse, bytes(body))
            with monkeypatch.context() as patched:
                patched.setattr(replica_fetch, "VERSION", -1)
                assert _parsed(parse, bytes(body)) == short, at
            body[at] = kept


def _parsed(parse: Any, body: bytes) -> Any:
    try:
        return parse(memoryview(body), VERSION)
    except MalformedRequest:
        return None
