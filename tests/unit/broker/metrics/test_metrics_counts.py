"""Counters change by exactly the work that was done."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, get_args

import pytest

from ottla.broker.api.api import Api
from ottla.broker.api.dispatch import dispatch, dispatch_run
from ottla.broker.api.registry import HANDLERS
from ottla.broker.api.reply_errors import ErrorPlaces, error_places
from ottla.broker.request_meters import RequestMeters
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest
from ottla.protocol.wire.fetch_client import encode_fetch_request
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.produce import encode_produce_request
from ottla.protocol.wire.schema import response_type
from tests.support.handlers_caller import Caller, batch, calling

PRODUCE, FETCH, METADATA, CREATE_TOPICS, DELETE_RECORDS, API_VERSIONS, ADD_PARTITIONS_TO_TXN = 0, 1, 3, 19, 21, 18, 24


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with calling() as caller:
        await caller.create_topic("t", 2)
        yield caller


def produce_frame(*batches: bytes, acks: int = -1, topic: str = "t") -> bytearray:
    """Encodes one request; the batches go to partitions 0, 1, ..."""
    body = encode_produce_request(9, None, acks, 5000, [(topic, list(enumerate(batches)))])
    return bytearray(request_header(PRODUCE, 9, 1, "test") + b"".join(body))


async def send(caller: Caller, frame: bytearray) -> None:
    reply: Any = dispatch(caller.broker, caller.connection, memoryview(frame))
    if inspect.isawaitable(reply):
        await reply


def fetch_frame(offset: int, *, wait_ms: int = 0, min_bytes: int = 1) -> bytearray:
    wanted = [("t", [FetchPartition(0, -1, offset, -1, -1, 1 << 20)])]
    request = FetchRequest(-1, wait_ms, min_bytes, 1 << 20, 0, 0, -1, wanted, [])  # type: ignore[arg-type] # names are keys
    return bytearray(request_header(FETCH, 12, 1, "test") + encode_fetch_request(12, request))


def traffic(caller: Caller) -> Any:
    topic = caller.broker.topics.get("t")
    assert topic is not None
    return topic.traffic


def acked(meters: RequestMeters, acks: int = -1) -> int:
    return meters.produce_s[acks].count


async def test_what_producers_write(caller: Caller) -> None:
    now_ms = caller.broker.clock.now_ms()
    first, second = batch(3, now_ms), batch(5, now_ms)
    await send(caller, produce_frame(first, second))
    found = traffic(caller)
    assert (found.batches_in, found.records_in, found.bytes_in) == (2, 8, len(first) + len(second))
    meters = caller.broker.meters
    assert dict(meters.requests) == {(PRODUCE, 9): 1}
    assert acked(meters) == 1
    assert not meters.errors


async def test_a_run_counts_as_its_requests(caller: Caller) -> None:
    await caller.produce("t")  # which makes space for more
    now_ms = caller.broker.clock.now_ms()
    frames = [memoryview(produce_frame(batch(records, now_ms))) for records in (1, 2, 3, 4)]
    reply, taken = dispatch_run(caller.broker, caller.connection, frames, 0, 32)
    assert taken == 4
    meters, found = caller.broker.meters, traffic(caller)
    assert meters.requests[PRODUCE, 9] == 5
    assert acked(meters) == 1, "it is not acknowledged yet"
    assert inspect.isawaitable(reply)
    await reply
    assert acked(meters) == 5
    assert (found.batches_in, found.records_in) == (5, 11)
    assert found.bytes_in == sum(len(batch(records, now_ms)) for records in (1, 1, 2, 3, 4))


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_acks_are_told_apart(caller: Caller, acks: int) -> None:
    now_ms = caller.broker.clock.now_ms()
    await send(caller, produce_frame(batch(1, now_ms), batch(1, now_ms), acks=acks))
    frames = [memoryview(produce_frame(batch(1, now_ms), acks=acks))]
    reply, taken = dispatch_run(caller.broker, caller.connection, frames, 0, 32)
    assert taken == 1
    if reply is not None and inspect.isawaitable(reply):
        await reply
    counts = {each: found.count for each, found in caller.broker.meters.produce_s.items()}
    assert counts == {**dict.fromkeys((-1, 0, 1), 0), acks: 2}


async def test_refused_batches_are_errors_and_no_traffic(caller: Caller) -> None:
    now_ms = caller.broker.clock.now_ms()
    await send(caller, produce_frame(batch(1, now_ms), topic="nowhere"))
    damaged = batch(1, now_ms)[:-1] + b"?"
    await send(caller, produce_frame(damaged, damaged, acks=1))
    await send(caller, produce_frame(batch(1, now_ms), acks=7))
    errors = caller.broker.meters.errors
    assert errors[PRODUCE, ErrorCode.unknown_topic_or_partition] == 1
    assert errors[PRODUCE, ErrorCode.corrupt_message] == 2
    assert errors[PRODUCE, ErrorCode.invalid_required_acks] == 1
    assert traffic(caller).records_in == 0
    assert caller.broker.meters.requests[PRODUCE, 9] == 3


async def test_what_readers_take(caller: Caller) -> None:
    size_bytes = len(batch(4, caller.broker.clock.now_ms()))
    await caller.produce("t", records=4)
    await caller.produce("t", records=4)
    await send(caller, fetch_frame(0))
    read = traffic(caller).by_consumers
    assert (read.records, read.bytes) == (8, 2 * size_bytes)
    await send(caller, fetch_frame(6))
    assert (read.records, read.bytes) == (10, 3 * size_bytes), "the batch is sent whole, two of its records were wanted"
    assert traffic(caller).by_replicas.bytes == 0
    assert caller.broker.traffic.by_consumers.bytes == read.bytes
    counts = {kind: found.count for kind, found in caller.broker.meters.fetch_s.items()}
    assert counts == {(False, False): 2, (False, True): 0, (True, False): 0, (True, True): 0}


async def test_a_long_poll_is_told_apart(caller: Caller) -> None:
    reply: Any = dispatch(caller.broker, caller.connection, memoryview(fetch_frame(0, wait_ms=30_000)))
    assert inspect.isawaitable(reply)
    await caller.produce("t", records=3)
    await reply
    meters = caller.broker.meters
    assert (meters.fetch_s[False, True].count, meters.fetch_s[False, False].count) == (1, 0)
    assert traffic(caller).by_consumers.records == 3


async def test_a_look_that_finds_too_little_is_no_traffic(caller: Caller) -> None:
    await caller.produce("t", records=3)
    reply: Any = dispatch(caller.broker, caller.connection, memoryview(fetch_frame(0, wait_ms=30_000, min_bytes=120)))
    assert inspect.isawaitable(reply)
    assert traffic(caller).by_consumers.records == 0
    await caller.produce("t", records=3)
    await reply
    assert traffic(caller).by_consumers.records == 6


async def test_fetches_that_are_refused(caller: Caller) -> None:
    await send(caller, fetch_frame(99))
    assert caller.broker.meters.errors[FETCH, ErrorCode.offset_out_of_range] == 1


async def test_other_apis(caller: Caller) -> None:
    meters = caller.broker.meters
    wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    values = {"topics": [wanted, {**wanted, "name": "new"}], "timeout": timedelta(seconds=5), "validate_only": False}
    await caller.call(CREATE_TOPICS, 7, **values)
    assert (meters.requests[CREATE_TOPICS, 7], meters.durations_s[CREATE_TOPICS].count) == (1, 1)
    assert meters.errors[CREATE_TOPICS, ErrorCode.topic_already_exists] == 1
    topics = [{"name": "t", "partitions": [{"partition_index": index, "offset": 5} for index in (0, 1, 2)]}]
    await caller.call(DELETE_RECORDS, 2, topics=topics, timeout=timedelta(seconds=5))
    assert meters.errors[DELETE_RECORDS, ErrorCode.offset_out_of_range] == 2
    assert meters.errors[DELETE_RECORDS, ErrorCode.unknown_topic_or_partition] == 1
    await caller.call(
        METADATA,
        9,
        topics=None,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    assert (meters.requests[METADATA, 9], meters.durations_s[METADATA].count) == (1, 1)


def test_error_codes_are_found_wherever_they_are() -> None:
    flat: Any = response_type(API_VERSIONS, 4)
    nested: Any = response_type(DELETE_RECORDS, 2)
    assert error_places(flat).codes == ("error_code",)
    deep = error_places(nested)
    assert not deep.codes
    ((topics, of_topic),) = deep.parts
    ((partitions, of_partition),) = of_topic.parts
    assert (topics, partitions, of_partition.codes) == ("topics", "partitions", ("error_code",))


def error_fields(type_: Any, path: str = "") -> Iterator[str]:
    """Returns the paths of all fields of a reply that hold error codes, by their names."""
    for field in fields(type_):
        if field.name.endswith("error_code"):
            yield f"{path}{field.name}"
        for each in parts_of(field.type):
            yield from error_fields(each, f"{path}{field.name}.")


def parts_of(type_: Any) -> Iterator[Any]:
    if is_dataclass(type_):
        yield type_
    for each in get_args(type_):
        yield from parts_of(each)


def counted_fields(places: ErrorPlaces, path: str = "") -> Iterator[str]:
    yield from (f"{path}{name}" for name in places.codes)
    for name, inner in places.parts:
        yield from counted_fields(inner, f"{path}{name}.")


TYPED = [each.api for each in HANDLERS.values() if each.handle is not None]


@pytest.mark.parametrize("api", TYPED, ids=lambda api: str(api.name))
def test_all_error_codes_of_all_replies_are_counted(api: Api) -> None:
    first, last = api.versions
    for version in range(first, last + 1):
        reply: Any = response_type(api.key, version)
        expected = {path for path in error_fields(reply) if not path.endswith("topic_config_error_code")}
        assert set(counted_fields(error_places(reply))) == expected


async def test_partitions_that_a_transaction_cannot_have_are_errors(caller: Caller) -> None:
    values = {
        "v3_and_below_transactional_id": "writer",
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": "t", "partitions": [0, 1]}],
    }
    await caller.call(ADD_PARTITIONS_TO_TXN, 3, **values)
    errors = caller.broker.meters.errors
    assert [count for (key, _), count in errors.items() if key == ADD_PARTITIONS_TO_TXN] == [2]


async def test_the_journal_times_every_sync(caller: Caller) -> None:
    journal = caller.broker.context.shared.journal
    assert journal is not None
    for _ in range(5):
        await caller.produce("t")
    assert journal.stats.sync_s.count == journal.stats.syncs == 5
    assert journal.stats.sync_s.total >= 0
