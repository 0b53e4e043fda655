"""Topics through the protocol: creating, describing, growing and deleting them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from ottla.protocol.model.errors import ErrorCode
from tests.support.handlers_caller import Caller, calling

METADATA, CREATE, DELETE, GROW, DESCRIBE = 3, 19, 20, 37, 75
SOON = timedelta(seconds=5)


@pytest_asyncio.fixture
async def caller() -> AsyncIterator[Caller]:
    async with calling() as caller:
        yield caller


def _asked(name: str, partitions: int = 1, replicas: int = 1, **values: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [],
        "configs": [],
        **values,
    }


async def _create(caller: Caller, *topics: dict[str, Any], version: int = 7, validate_only: bool = False) -> list[Any]:
    reply = await caller.call(CREATE, version, topics=topics, timeout=SOON, validate_only=validate_only)
    return list(reply.topics)


@pytest.mark.parametrize("version", range(2, 8))
async def test_create(caller: Caller, version: int) -> None:
    config = {"name": "retention.ms", "value": "1000"}
    (result,) = await _create(caller, _asked("orders", 3, configs=[config]), version=version)
    assert (result.name, result.error_code, result.error_message) == ("orders", ErrorCode.none, None)
    topic = caller.broker.topics.get("orders")
    assert topic is not None
    assert len(topic.partitions) == 3
    assert topic.config.retention_ms == 1000
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        configs = {each.name: (each.value, each.config_source) for each in result.configs}
        assert configs["retention.ms"] == ("1000", 1)
        assert configs["segment.bytes"] == ("1073741824", 5)
    if version >= 7:
        assert result.topic_id == topic.id


async def test_create_with_the_brokers_defaults() -> None:
    async with calling(num_partitions="4") as caller:
        (result,) = await _create(caller, _asked("t", -1, -1))
        assert (result.num_partitions, result.replication_factor) == (4, 1)
        (checked,) = await _create(caller, _asked("u", -1, -1), validate_only=True)
        assert (checked.error_code, checked.num_partitions) == (ErrorCode.none, 4)
        assert caller.broker.topics.get("u") is None


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (_asked("t", 0), ErrorCode.invalid_partitions),
        (_asked("t", -2), ErrorCode.invalid_partitions),
        (_asked("t", 1, 0), ErrorCode.invalid_replication_factor),
        (_asked("t", 1, 3), ErrorCode.invalid_replication_factor),
        (_asked("a/b"), ErrorCode.invalid_topic_exception),
        (_asked(""), ErrorCode.invalid_topic_exception),
        (_asked("x" * 250), ErrorCode.invalid_topic_exception),
        (_asked("here.already"), ErrorCode.topic_already_exists),
        (_asked("here_already"), ErrorCode.invalid_topic_exception),
        (_asked("t", configs=[{"name": "retention.msec", "value": "1"}]), ErrorCode.invalid_config),
        (_asked("t", configs=[{"name": "retention.ms", "value": "soon"}]), ErrorCode.invalid_config),
        (_asked("t", configs=[{"name": "retention.ms", "value": None}]), ErrorCode.invalid_config),
        (_asked("t", 1, 1, assignments=[{"partition_index": 0, "broker_ids": [1]}]), ErrorCode.invalid_request),
        (
            _asked("t", -1, -1, assignments=[{"partition_index": 1, "broker_ids": [1]}]),
            ErrorCode.invalid_replica_assignment,
        ),
        (
            _asked("t", -1, -1, assignments=[{"partition_index": 0, "broker_ids": [9]}]),
            ErrorCode.invalid_replica_assignment,
        ),
        (
            _asked("t", -1, -1, assignments=[{"partition_index": 0, "broker_ids": []}]),
            ErrorCode.invalid_replica_assignment,
        ),
    ],
)
async def test_create_refuses(caller: Caller, asked: dict[str, Any], error: ErrorCode) -> None:
    await caller.create_topic("here.already")
    (result,) = await _create(caller, asked)
    assert result.error_code is error
    assert result.error_message
    assert caller.broker.topics.get("t") is None


async def test_one_bad_topic_does_not_stop_the_others(caller: Caller) -> None:
    assigned = [{"partition_index": index, "broker_ids": [1]} for index in range(2)]
    results = await _create(
        caller, _asked("twice"), _asked("twice"), _asked("bad", 0), _asked("good", -1, -1, assignments=assigned)
    )
    assert {result.name: result.error_code for result in results} == {
        "twice": ErrorCode.invalid_request,
        "bad": ErrorCode.invalid_partitions,
        "good": ErrorCode.none,
    }
    assert [topic.name for topic in caller.broker.topics] == ["good"]
    assert len(next(iter(caller.broker.topics)).partitions) == 2


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_by_name(caller: Caller, version: int) -> None:
    await caller.create_topic("t")
    names = ["t", "missing"]
    asked: dict[str, Any] = {"topic_names": names}
    if version >= 6:
        asked = {"topics": [{"name": name, "topic_id": None} for name in names]}
    reply = await caller.call(DELETE, version, timeout=SOON, **asked)
    assert [(each.name, each.error_code) for each in reply.responses] == [
        ("t", ErrorCode.none),
        ("missing", ErrorCode.unknown_topic_or_partition),
    ]
    assert len(caller.broker.topics) == 0


async def test_delete_by_id(caller: Caller) -> None:
    topic = await caller.create_topic("t")
    other = await caller.create_topic("u")
    asked = [
        {"name": None, "topic_id": topic.id},
        {"name": None, "topic_id": caller.broker.context.new_id()},
        {"name": "u", "topic_id": other.id},
        {"name": None, "topic_id": None},
    ]
    reply = await caller.call(DELETE, 6, timeout=SOON, topics=asked)
    assert [each.error_code for each in reply.responses] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_id,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]
    assert (reply.responses[0].name, reply.responses[0].topic_id) == ("t", topic.id)
    assert [topic.name for topic in caller.broker.topics] == ["u"]


async def test_a_topic_that_is_named_twice_is_not_deleted(caller: Caller) -> None:
    await caller.create_topic("t")
    reply = await caller.call(DELETE, 5, timeout=SOON, topic_names=["t", "t"])
    assert [each.error_code for each in reply.responses] == [ErrorCode.invalid_request]
    assert caller.broker.topics.get("t") is not None


async def test_a_broker_that_is_alone_takes_only_assignments_to_itself(caller: Caller) -> None:
    assigned = [{"partition_index": 0, "broker_ids": [1]}, {"partition_index": 1, "broker_ids": [1, 2]}]
    (result,) = await _create(caller, _asked("t", -1, -1, assignments=assigned))
    assert result.error_code is ErrorCode.invalid_replica_assignment
    assert "the brokers [1, 2], but broker 1 is the only one" in result.error_message


async def test_partitions_are_assigned_once_each(caller: Caller) -> None:
    assigned = [{"partition_index": index, "broker_ids": [1]} for index in (0, 1, 1)]
    (result,) = await _create(caller, _asked("t", -1, -1, assignments=assigned))
    assert result.error_code is ErrorCode.invalid_replica_assignment
    assert "multiple manual partition assignments for partition 1" in result.error_message


async def test_a_validated_topic_has_the_counts_it_would_get(caller: Caller) -> None:
    assigned = [{"partition_index": index, "broker_ids": [1]} for index in range(3)]
    (result,) = await _create(caller, _asked("t", -1, -1, assignments=assigned), validate_only=True)
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.none, 3, 1)
    assert caller.broker.topics.get("t") is None


async def test_deletion_can_be_disabled() -> None:
    async with calling(delete_topic_enable="false") as caller:
        await caller.create_topic("t")
        reply = await caller.call(DELETE, 5, timeout=SOON, topic_names=["t"])
        assert reply.responses[0].error_code is ErrorCode.topic_deletion_disabled
        assert caller.broker.topics.get("t") is not None


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions(caller: Caller, version: int) -> None:
    topic = await caller.create_topic("t", 2)
    asked = [
        {"name": "t", "count": 5, "assignments": None},
        {"name": "missing", "count": 5, "assignments": None},
        {"name": "twice", "count": 5, "assignments": None},
        {"name": "twice", "count": 6, "assignments": None},
    ]
    reply = await caller.call(GROW, version, topics=asked, timeout=SOON, validate_only=False)
    assert {each.name: each.error_code for each in reply.results} == {
        "t": ErrorCode.none,
        "missing": ErrorCode.unknown_topic_or_partition,
        "twice": ErrorCode.invalid_request,
    }
    assert [partition.index for partition in topic.partitions] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("count", "assignments", "error"),
    [
        (2, None, ErrorCode.invalid_partitions),
        (1, None, ErrorCode.invalid_partitions),
        (3, [{"broker_ids": [1]}, {"broker_ids": [1]}], ErrorCode.invalid_replica_assignment),
        (3, [{"broker_ids": [2]}], ErrorCode.invalid_replica_assignment),
        (3, [{"broker_ids": [1]}], ErrorCode.none),
    ],
)
async def test_create_partitions_checks(caller: Caller, count: int, assignments: Any, error: ErrorCode) -> None:
    topic = await caller.create_topic("t", 2)
    asked = [{"name": "t", "count": count, "assignments": assignments}]
    reply = await caller.call(GROW, 3, topics=asked, timeout=SOON, validate_only=True)
    assert reply.results[0].error_code is error
    assert len(topic.partitions) == 2


@pytest.mark.parametrize("version", range(14))
async def test_metadata_of_everything(caller: Caller, version: int) -> None:
    topic = await caller.create_topic("b", 2)
    await caller.create_topic("a")
    values: dict[str, Any] = {"topics": [] if version == 0 else None}
    reply = await caller.call(METADATA, version, **_with_flags(version, values))
    (broker,) = reply.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "broker.example", 9092)
    assert [(each.name, each.error_code) for each in reply.topics] == [("a", ErrorCode.none), ("b", ErrorCode.none)]
    partitions = reply.topics[1].partitions
    assert [each.partition_index for each in partitions] == [0, 1]
    assert {(each.leader_id, each.replica_nodes, each.isr_nodes) for each in partitions} == {(1, (1,), (1,))}
    if version >= 2:
        assert reply.cluster_id == "test-cluster"
    if version >= 7:
        assert partitions[0].leader_epoch == topic.partitions[0].leader_epoch
    if version >= 10:
        assert reply.topics[1].topic_id == topic.id


def _with_flags(version: int, values: dict[str, Any], *, create: bool = False) -> dict[str, Any]:
    if version >= 4:
        values["allow_auto_topic_creation"] = create
    if version >= 8:
        values["include_topic_authorized_operations"] = True
    if 8 <= version <= 10:
        values["include_cluster_authorized_operations"] = True
    if version >= 10:
        for topic in values["topics"] or []:
            topic.setdefault("topic_id", None)
    return values


@pytest.mark.parametrize("version", range(14))
async def test_metadata_of_what_is_not_there(caller: Caller, version: int) -> None:
    values = {"topics": [{"name": "missing"}, {"name": "in/valid"}]}
    reply = await caller.call(METADATA, version, **_with_flags(version, values))
    created = version < 4  # older clients have no such flag
    assert [each.error_code for each in reply.topics] == [
        ErrorCode.none if created else ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
    ]
    assert (caller.broker.topics.get("missing") is not None) == created


async def test_metadata_creates_what_was_asked_for(caller: Caller) -> None:
    values = {"topics": [{"name": "new"}]}
    reply = await caller.call(METADATA, 12, **_with_flags(12, values, create=True))
    assert reply.topics[0].error_code is ErrorCode.none
    assert len(reply.topics[0].partitions) == 1


async def test_metadata_creates_nothing_if_the_broker_says_so() -> None:
    async with calling(auto_create_topics_enable="false") as caller:
        values = {"topics": [{"name": "new"}]}
        reply = await caller.call(METADATA, 12, **_with_flags(12, values, create=True))
        assert reply.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        assert len(caller.broker.topics) == 0


async def test_metadata_by_id(caller: Caller) -> None:
    topic = await caller.create_topic("t")
    missing = caller.broker.context.new_id()
    values = {"topics": [{"name": None, "topic_id": topic.id}, {"name": None, "topic_id": missing}]}
    reply = await caller.call(METADATA, 13, **_with_flags(13, values, create=True))
    assert [(each.error_code, each.name, each.topic_id) for each in reply.topics] == [
        (ErrorCode.none, "t", topic.id),
        (ErrorCode.unknown_topic_id, None, missing),
    ]


async def test_an_empty_list_asks_for_no_topic(caller: Caller) -> None:
    await caller.create_topic("t")
    reply = await caller.call(METADATA, 9, **_with_flags(9, {"topics": []}))
    assert reply.topics == ()


async def test_describe_topic_partitions_in_pages(caller: Caller) -> None:
    for name, count in (("a", 3), ("b", 2), ("c", 1)):
        await caller.create_topic(name, count)
    cursor: Any = None
    seen = []
    for _ in range(4):
        reply = await caller.call(DESCRIBE, 0, topics=[], response_partition_limit=2, cursor=cursor)
        seen += [(topic.name, each.partition_index) for topic in reply.topics for each in topic.partitions]
        if reply.next_cursor is None:
            break
        cursor = {"topic_name": reply.next_cursor.topic_name, "partition_index": reply.next_cursor.partition_index}
    assert reply.next_cursor is None
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]


async def test_describe_topic_partitions_of_what_is_not_there(caller: Caller) -> None:
    reply = await caller.call(
        DESCRIBE, 0, topics=[{"name": "missing"}, {"name": "in/valid"}], response_partition_limit=10, cursor=None
    )
    assert {each.name: each.error_code for each in reply.topics} == {
        "in/valid": ErrorCode.invalid_topic_exception,
        "missing": ErrorCode.unknown_topic_or_partition,
    }
