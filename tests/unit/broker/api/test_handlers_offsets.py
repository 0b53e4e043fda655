"""Offsets through the protocol: by time, by epoch, and moving the log start offset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from ottla.protocol.model.errors import ErrorCode
from tests.support.handlers_caller import Caller, calling

LIST, DELETE, FOR_EPOCH = 2, 21, 23
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6


@pytest_asyncio.fixture(params=["disk", "memory"])
async def caller(request: pytest.FixtureRequest) -> AsyncIterator[Caller]:
    async with calling(ottla_durability=request.param) as caller:
        yield caller


async def _list(caller: Caller, timestamp: int, *, version: int = 11, epoch: int = -1, **values: Any) -> Any:
    partition: dict[str, Any] = {"partition_index": 0, "timestamp": timestamp}
    if version >= 4:
        partition["current_leader_epoch"] = epoch
    request: dict[str, Any] = {"replica_id": -1, "topics": [{"name": "t", "partitions": [partition]}], **values}
    if version >= 2:
        request.setdefault("isolation_level", 0)
    if version >= 10:
        request["timeout"] = timedelta(0)
    reply = await caller.call(LIST, version, **request)
    return reply.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
async def test_list_offsets(caller: Caller, version: int) -> None:
    await caller.create_topic("t")
    now_ms = caller.broker.clock.now_ms()
    await caller.produce("t", records=5, timestamp_ms=now_ms - 1000)
    await caller.produce("t", records=5, timestamp_ms=now_ms - 500)
    earliest = await _list(caller, EARLIEST, version=version)
    assert (earliest.error_code, earliest.offset, earliest.timestamp) == (ErrorCode.none, 0, -1)
    latest = await _list(caller, LATEST, version=version)
    assert (latest.error_code, latest.offset) == (ErrorCode.none, 10)
    by_time = await _list(caller, now_ms - 998, version=version)
    assert (by_time.offset, by_time.timestamp) == (2, now_ms - 998)
    between = await _list(caller, now_ms - 900, version=version)
    assert (between.offset, between.timestamp) == (5, now_ms - 500)
    after = await _list(caller, now_ms + 1, version=version)
    assert (after.error_code, after.offset, after.timestamp) == (ErrorCode.none, -1, -1)


async def test_special_times_and_their_versions(caller: Caller) -> None:
    await caller.create_topic("t")
    now_ms = caller.broker.clock.now_ms()
    await caller.produce("t", records=3, timestamp_ms=now_ms)
    await caller.produce("t", records=1, timestamp_ms=now_ms - 1000)
    found = await _list(caller, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (2, now_ms + 2)
    assert (await _list(caller, EARLIEST_LOCAL)).offset == 0
    assert (await _list(caller, LATEST_TIERED)).offset == -1
    assert (await _list(caller, EARLIEST_PENDING)).offset == -1
    for timestamp, version in (
        (MAX_TIMESTAMP, 6),
        (EARLIEST_LOCAL, 7),
        (LATEST_TIERED, 8),
        (EARLIEST_PENDING, 10),
        (-7, 11),
    ):
        refused = await _list(caller, timestamp, version=version)
        assert refused.error_code is ErrorCode.unsupported_version


async def test_an_empty_log(caller: Caller) -> None:
    await caller.create_topic("t")
    assert (await _list(caller, LATEST)).offset == 0
    assert (await _list(caller, EARLIEST)).offset == 0
    assert (await _list(caller, MAX_TIMESTAMP)).offset == -1
    assert (await _list(caller, 0)).offset == -1


async def test_a_consumer_sees_what_is_acknowledged() -> None:
    """While the journal's disk hangs, the record is in the log but not acknowledged: only replicas see it."""
    async with calling() as caller:
        topic = await caller.create_topic("t")
        caller.disk.stall("journal")
        producing = asyncio.ensure_future(caller.produce("t", records=2))
        await asyncio.sleep(0)  # the request is handled up to its wait
        assert topic.partitions[0].log.end_offset == 2
        assert (await _list(caller, LATEST)).offset == 0
        assert (await _list(caller, LATEST, replica_id=2)).offset == 2
        assert not producing.done()
        caller.disk.release("journal")
        await producing
        assert (await _list(caller, LATEST)).offset == 2


async def test_list_offsets_checks(caller: Caller) -> None:
    assert (await _list(caller, LATEST)).error_code is ErrorCode.unknown_topic_or_partition
    topic = await caller.create_topic("t")
    epoch = topic.partitions[0].leader_epoch
    assert (await _list(caller, LATEST, epoch=epoch)).leader_epoch == epoch
    assert (await _list(caller, LATEST, epoch=epoch - 1)).error_code is ErrorCode.fenced_leader_epoch
    assert (await _list(caller, LATEST, epoch=epoch + 1)).error_code is ErrorCode.unknown_leader_epoch
    twice = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}] * 2
    reply = await caller.call(LIST, 9, replica_id=-1, isolation_level=1, topics=[{"name": "t", "partitions": twice}])
    assert {each.error_code for each in reply.topics[0].partitions} == {ErrorCode.invalid_request}


@pytest.mark.parametrize("version", range(2, 5))
async def test_offset_for_leader_epoch(caller: Caller, version: int) -> None:
    topic = await caller.create_topic("t")
    epoch = topic.partitions[0].leader_epoch

    async def ask(leader_epoch: int, current: int = -1, name: str = "t") -> Any:
        partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": leader_epoch}
        values: dict[str, Any] = {"topics": [{"topic": name, "partitions": [partition]}]}
        if version >= 3:
            values["replica_id"] = -1
        reply = await caller.call(FOR_EPOCH, version, **values)
        return reply.topics[0].partitions[0]

    empty = await ask(epoch)
    assert (empty.error_code, empty.leader_epoch, empty.end_offset) == (ErrorCode.none, epoch, 0)
    await caller.produce("t", records=4)
    written = await ask(epoch)
    assert (written.leader_epoch, written.end_offset) == (epoch, 4)
    assert (await ask(epoch, epoch - 1)).error_code is ErrorCode.fenced_leader_epoch
    assert (await ask(epoch, epoch + 1)).error_code is ErrorCode.unknown_leader_epoch
    assert (await ask(epoch, name="missing")).error_code is ErrorCode.unknown_topic_or_partition


async def _delete(caller: Caller, offset: int, *, version: int = 2, name: str = "t") -> Any:
    asked = [{"name": name, "partitions": [{"partition_index": 0, "offset": offset}]}]
    reply = await caller.call(DELETE, version, topics=asked, timeout=timedelta(seconds=1))
    result = reply.topics[0].partitions[0]
    return result.error_code, result.low_watermark


@pytest.mark.parametrize("version", range(3))
async def test_delete_records(caller: Caller, version: int) -> None:
    await caller.create_topic("t")
    await caller.produce("t", records=10)
    assert await _delete(caller, 4, version=version) == (ErrorCode.none, 4)
    assert (await _list(caller, EARLIEST)).offset == 4
    assert await _delete(caller, 11, version=version) == (ErrorCode.offset_out_of_range, -1)
    assert await _delete(caller, -1, version=version) == (ErrorCode.none, 10)
    assert (await _list(caller, EARLIEST)).offset == 10
    assert await _delete(caller, 0, version=version, name="missing") == (ErrorCode.unknown_topic_or_partition, -1)


async def test_a_compacted_topic_keeps_its_records() -> None:
    async with calling() as caller:
        await caller.create_topic("t", cleanup_policy="compact")
        assert await _delete(caller, 0) == (ErrorCode.policy_violation, -1)
        await caller.create_topic("both", cleanup_policy="compact,delete")
        assert await _delete(caller, 0, name="both") == (ErrorCode.none, 0)
