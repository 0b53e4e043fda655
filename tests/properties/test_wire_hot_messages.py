"""The hand-written Produce and Fetch codecs equal those compiled from the schema, in every version."""

from __future__ import annotations

import contextlib
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from ottla.protocol.wire.fetch import (
    MAX_HIGH_WATERMARK,
    FetchPartition,
    FetchRequest,
    PartitionData,
    encode_fetch_response,
    parse_fetch_request,
)
from ottla.protocol.wire.fetch_client import encode_fetch_request, parse_fetch_response
from ottla.protocol.wire.primitives import MalformedRequest
from ottla.protocol.wire.produce import (
    PartitionProduced,
    encode_produce_request,
    encode_produce_response,
    parse_produce_request,
    parse_produce_response,
)
from ottla.protocol.wire.schema import decode, encode, request_type, response_type

PRODUCE, FETCH = 0, 1
SEEDS = range(6)


def _text(rng: random.Random) -> str:
    return rng.choice(["", "t", "orders.v1", "ünïcode", "n" * rng.randint(1, 249)])


def _topic_key(rng: random.Random, ids: bool) -> str | UUID:
    return UUID(int=rng.getrandbits(128) | 1) if ids else _text(rng)


def _i64(rng: random.Random) -> int:
    return rng.choice([-1, 0, rng.randint(0, 2**63 - 1)])


def _i32(rng: random.Random) -> int:
    return rng.choice([-1, 0, rng.randint(0, 2**31 - 1)])


def _records(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 61, 127, 128, 20_000]))


def _key_field(key: str | UUID, name_field: str) -> dict[str, Any]:
    return {"topic_id": key} if isinstance(key, UUID) else {name_field: key}


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("seed", SEEDS)
def test_produce_request(version: int, seed: int) -> None:
    rng = random.Random(seed)
    topics = [
        (
            _topic_key(rng, version >= 13),
            [(_i32(rng), rng.choice([None, _records(rng)])) for _ in range(rng.randint(0, 4))],
        )
        for _ in range(rng.randint(0, 3))
    ]
    transactional_id = rng.choice([None, "", "tx"])
    body = b"".join(encode_produce_request(version, transactional_id, -1, 30_000, topics))

    request = _produce_request_entity(version, transactional_id, topics)
    assert body == encode(request)
    parsed = parse_produce_request(memoryview(body), version)
    assert parsed[:3] == (transactional_id, -1, 30_000)
    assert parsed.topics == topics
    assert decode(request_type(PRODUCE, version), memoryview(body)) == (request, len(body))


def _produce_request_entity(version: int, transactional_id: str | None, topics: list[Any]) -> Any:
    types = _module(request_type(PRODUCE, version))
    return types.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout=timedelta(seconds=30),
        topic_data=tuple(
            types.TopicProduceData(
                **_key_field(key, "name"),
                partition_data=tuple(
                    types.PartitionProduceData(index=index, records=records) for index, records in partitions
                ),
            )
            for key, partitions in topics
        ),
    )


def _module(entity_type: type[Any]) -> Any:
    import sys

    return sys.modules[entity_type.__module__]


def _random_result(rng: random.Random, version: int) -> PartitionProduced:
    result = PartitionProduced(
        _i32(rng), rng.choice([0, 3, 19, -1]), _i64(rng), rng.choice([-1, 1_700_000_000_123]), -1
    )
    if version >= 5:
        result = result._replace(log_start_offset=_i64(rng))
    if version >= 8 and rng.random() < 0.5:
        errors = tuple((_i32(rng), rng.choice([None, "bad", "x" * 200])) for _ in range(rng.randint(0, 3)))
        result = result._replace(record_errors=errors, error_message=rng.choice([None, "refused"]))
    return result


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("seed", SEEDS)
def test_produce_response(version: int, seed: int) -> None:
    rng = random.Random(seed)
    topics = [
        (_topic_key(rng, version >= 13), [_random_result(rng, version) for _ in range(rng.randint(0, 4))])
        for _ in range(rng.randint(0, 3))
    ]
    body = encode_produce_response(version, topics, throttle_ms=7)
    assert parse_produce_response(memoryview(body), version) == (topics, 7)
    entity, end = decode(response_type(PRODUCE, version), memoryview(body))
    assert end == len(body)
    assert encode(entity) == body
    assert entity.throttle_time == timedelta(milliseconds=7)
    for topic, (key, results) in zip(entity.responses, topics, strict=True):
        assert getattr(topic, "topic_id" if isinstance(key, UUID) else "name") == key
        assert [_result_of(version, partition) for partition in topic.partition_responses] == results


def _result_of(version: int, entity: Any) -> PartitionProduced:
    result = PartitionProduced(entity.index, entity.error_code, entity.base_offset, _to_ms(entity.log_append_time))
    if version >= 5:
        result = result._replace(log_start_offset=entity.log_start_offset)
    if version >= 8:
        errors = tuple((each.batch_index, each.batch_index_error_message) for each in entity.record_errors)
        result = result._replace(record_errors=errors, error_message=entity.error_message)
    return result


def _to_ms(time: datetime | None) -> int:
    return -1 if time is None else (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _random_fetch_partition(rng: random.Random, version: int) -> FetchPartition:
    return FetchPartition(
        _i32(rng),
        _i32(rng) if version >= 9 else -1,
        _i64(rng),
        _i32(rng) if version >= 12 else -1,
        _i64(rng) if version >= 5 else -1,
        _i32(rng),
        rng.choice([None, UUID(int=5)]) if version >= 17 else None,
        rng.choice([MAX_HIGH_WATERMARK, 0, 77]) if version >= 18 else MAX_HIGH_WATERMARK,
    )


def _random_fetch_request(rng: random.Random, version: int) -> FetchRequest:
    ids = version >= 13
    replica = rng.random() < 0.3
    return FetchRequest(
        replica_id=3 if replica else -1,
        max_wait_ms=_i32(rng),
        min_bytes=_i32(rng),
        max_bytes=_i32(rng),
        isolation_level=rng.choice([0, 1]),
        session_id=_i32(rng) if version >= 7 else 0,
        session_epoch=_i32(rng) if version >= 7 else -1,
        topics=[
            (_topic_key(rng, ids), [_random_fetch_partition(rng, version) for _ in range(rng.randint(0, 4))])
            for _ in range(rng.randint(0, 3))
        ],
        forgotten=[
            (_topic_key(rng, ids), [_i32(rng) for _ in range(rng.randint(0, 4))])
            for _ in range(rng.randint(0, 2) if version >= 7 else 0)
        ],
        rack_id=_text(rng) if version >= 11 else "",
        cluster_id=rng.choice([None, "cluster"]) if version >= 12 else None,
        replica_epoch=9 if replica and version >= 15 else -1,
    )


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize("seed", SEEDS)
def test_fetch_request(version: int, seed: int) -> None:
    request = _random_fetch_request(random.Random(seed), version)
    body = encode_fetch_request(version, request)
    assert parse_fetch_request(memoryview(body), version) == request
    entity, end = decode(request_type(FETCH, version), memoryview(body))
    assert end == len(body)
    assert encode(entity) == body
    assert _fetch_request_of(version, entity) == request


def _fetch_request_of(version: int, entity: Any) -> FetchRequest:
    replica = entity.replica_state if version >= 15 else entity
    return FetchRequest(
        replica_id=replica.replica_id,
        max_wait_ms=entity.max_wait // timedelta(milliseconds=1),
        min_bytes=entity.min_bytes,
        max_bytes=entity.max_bytes,
        isolation_level=entity.isolation_level,
        session_id=getattr(entity, "session_id", 0),
        session_epoch=getattr(entity, "session_epoch", -1),
        topics=[
            (_entity_key(topic), [_fetch_partition_of(partition) for partition in topic.partitions])
            for topic in entity.topics
        ],
        forgotten=[
            (_entity_key(topic), list(topic.partitions)) for topic in getattr(entity, "forgotten_topics_data", ())
        ],
        rack_id=getattr(entity, "rack_id", ""),
        cluster_id=getattr(entity, "cluster_id", None),
        replica_epoch=getattr(replica, "replica_epoch", -1),
    )


def _entity_key(topic: Any) -> str | UUID:
    key: str | UUID = topic.topic_id if hasattr(topic, "topic_id") else topic.topic
    return key


def _fetch_partition_of(entity: Any) -> FetchPartition:
    return FetchPartition(
        entity.partition,
        getattr(entity, "current_leader_epoch", -1),
        entity.fetch_offset,
        getattr(entity, "last_fetched_epoch", -1),
        getattr(entity, "log_start_offset", -1),
        entity.partition_max_bytes,
        getattr(entity, "replica_directory_id", None),
        getattr(entity, "high_watermark", MAX_HIGH_WATERMARK),
    )


def _random_partition_data(rng: random.Random, version: int) -> PartitionData:
    records = [_records(rng) for _ in range(rng.randint(0, 3))]
    return PartitionData(
        _i32(rng),
        rng.choice([0, 1, 3]),
        _i64(rng),
        _i64(rng),
        _i64(rng) if version >= 5 else -1,
        rng.choice([None, (), ((5, 6), (7, 8))]),
        _i32(rng) if version >= 11 else -1,
        records,
        sum(map(len, records)),
        rng.choice([None, (4, 99)]) if version >= 12 else None,
        rng.choice([None, (2, 8)]) if version >= 12 else None,
    )


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize("seed", SEEDS)
def test_fetch_response(version: int, seed: int) -> None:
    rng = random.Random(seed)
    topics = [
        (_topic_key(rng, version >= 13), [_random_partition_data(rng, version) for _ in range(rng.randint(0, 4))])
        for _ in range(rng.randint(0, 3))
    ]
    error, session_id = (70, 12) if version >= 7 else (0, 0)
    body = b"".join(encode_fetch_response(version, 5, error, session_id, topics))
    entity, end = decode(response_type(FETCH, version), memoryview(body))
    assert end == len(body)
    assert encode(entity) == body
    parsed = parse_fetch_response(memoryview(body), version)
    assert parsed[:3] == (5, error, session_id)
    for (key, partitions), (parsed_key, fetched), topic in zip(topics, parsed.topics, entity.responses, strict=True):
        assert key == parsed_key == _entity_key(topic)
        for data, got, partition in zip(partitions, fetched, topic.partitions, strict=True):
            assert got[:7] == data[:7]
            assert got.records == b"".join(data.records) == partition.records
            assert got.diverging == data.diverging
            assert partition.error_code is ErrorCode(data.error)
            if version >= 12 and data.current_leader is not None:
                leader = partition.current_leader
                assert (leader.leader_id, leader.leader_epoch) == data.current_leader


def test_records_are_neither_copied_nor_joined() -> None:
    records = bytearray(b"r" * 1000)
    data = PartitionData(0, 0, 1, 1, 0, None, -1, [records], len(records))
    assert any(buffer is records for buffer in encode_fetch_response(17, 0, 0, 0, [(UUID(int=1), [data])]))
    body = memoryview(b"".join(encode_produce_request(12, None, 1, 0, [("t", [(0, records)])])))
    ((_, [(_, view)]),) = parse_produce_request(body, 12).topics
    assert view is not None
    assert view.obj is body.obj


@pytest.mark.parametrize("seed", range(40))
def test_damaged_hot_requests_raise_only_malformed(seed: int) -> None:
    rng = random.Random(seed)
    for version in range(4, 19):
        _parse_damaged(
            rng, parse_fetch_request, encode_fetch_request(version, _random_fetch_request(rng, version)), version
        )
    for version in range(3, 14):
        topics = [(_topic_key(rng, version >= 13), [(0, _records(rng))])]
        body = b"".join(encode_produce_request(version, None, -1, 1, topics))
        _parse_damaged(rng, parse_produce_request, body, version)


def _parse_damaged(rng: random.Random, parse: Any, body: bytes, version: int) -> None:
    damaged = bytearray(body[: rng.randint(0, len(body))] if rng.random() < 0.5 else body)
    for _ in range(rng.randint(0, 3) if damaged else 0):
        damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
    with contextlib.suppress(MalformedRequest):
        parse(memoryview(damaged), version)
