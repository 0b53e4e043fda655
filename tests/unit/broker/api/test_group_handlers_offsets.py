"""Offsets of groups through the protocol, in every version of commit, fetch and delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from ottla.machines.groups.encoding import encode
from ottla.machines.groups.records import CommittedOffset, OffsetRecord
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.primitives import MalformedRequest
from tests.support.group_caller import (
    COMMIT,
    DELETE_OFFSETS,
    FETCH,
    ClassicMember,
    ask,
    commit,
    fetch,
    grouping,
    machine_of,
    offsets_of,
)
from tests.support.handlers_caller import Caller, calling

NONE, UNKNOWN = ErrorCode.none, ErrorCode.unknown_topic_or_partition
STRANGE_ID = UUID(int=77)
COMMIT_VERSIONS, FETCH_VERSIONS = range(2, 11), range(1, 11)


@pytest_asyncio.fixture
async def caller() -> AsyncIterator[Caller]:
    async with grouping() as caller:
        await caller.create_topic("t", 3)
        yield caller


def _key(caller: Caller, version: int) -> Any:
    """Returns how topic t is named."""
    topic = caller.broker.topics.get("t")
    assert topic is not None
    return topic.id if version >= 10 else "t"


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
async def test_what_is_committed_is_found(caller: Caller, version: int) -> None:
    key = _key(caller, version)
    errors = await commit(caller, version=version, offsets={(key, 0): 5, (key, 2): 6})
    assert errors == {(key, 0): NONE, (key, 2): NONE}
    found = await fetch(caller, topics={"t": [0, 1, 2]})
    assert offsets_of(found) == {("t", 0): 5, ("t", 1): -1, ("t", 2): 6}
    first, nothing, _ = found.topics[0].partitions
    assert (first.metadata, first.committed_leader_epoch) == ("at 5", 3 if version >= 6 else -1)
    assert (nothing.metadata, nothing.committed_leader_epoch, nothing.error_code) == ("", -1, NONE)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_fetching(caller: Caller, version: int) -> None:
    await commit(caller, offsets={("t", 0): 5, ("t", 1): 7})
    key = _key(caller, version)
    found = await fetch(caller, version=version, topics={key: [1, 0, 2]})
    assert offsets_of(found, version) == {(key, 1): 7, (key, 0): 5, (key, 2): -1}
    (topic,) = found.topics
    assert [each.error_code for each in topic.partitions] == [NONE] * 3
    assert [each.metadata for each in topic.partitions] == ["at 7", "at 5", ""]
    if version >= 2:
        assert found.error_code is NONE
    if version >= 5:
        assert [each.committed_leader_epoch for each in topic.partitions] == [3, 3, -1]
    if version >= 8:
        assert found.group_id == "g"
    nobody = await fetch(caller, group="nobody", version=version, topics={key: [0]})
    assert offsets_of(nobody, version) == {(key, 0): -1}


@pytest.mark.parametrize("version", FETCH_VERSIONS[1:])
async def test_all_that_a_group_has(caller: Caller, version: int) -> None:
    await caller.create_topic("u")
    await commit(caller, offsets={("t", 2): 5, ("u", 0): 7})
    found = await fetch(caller, version=version, topics=None)
    other = caller.broker.topics.get("u")
    assert other is not None
    expected = {(_key(caller, version), 2): 5, (other.id if version >= 10 else "u", 0): 7}
    assert offsets_of(found, version) == expected
    assert (await fetch(caller, group="nobody", version=version, topics=None)).topics == ()


async def test_several_groups_at_once(caller: Caller) -> None:
    await commit(caller, group="g", offsets={("t", 0): 5})
    await commit(caller, group="h", offsets={("t", 0): 6})
    asked = [
        {"group_id": "h", "topics": None, "member_id": None, "member_epoch": -1},
        {"group_id": "nobody", "topics": None, "member_id": None, "member_epoch": -1},
        {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}], "member_id": None, "member_epoch": -1},
    ]
    reply = await ask(caller, FETCH, 9, groups=asked * 100, require_stable=False)
    assert [each.group_id for each in reply.groups] == ["h", "nobody", "g"] * 100
    assert [list(offsets_of(each).values()) for each in reply.groups] == [[6], [], [5]] * 100


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
async def test_partitions_that_do_not_exist(caller: Caller, version: int) -> None:
    """They are rejected one by one; the others are committed."""
    key, strange = _key(caller, version), STRANGE_ID if version >= 10 else "strange"
    errors = await commit(caller, version=version, offsets={(strange, 0): 1, (key, 3): 2, (key, 1): 3, (key, -1): 4})
    assert errors == {
        (strange, 0): ErrorCode.unknown_topic_id if version >= 10 else UNKNOWN,
        (key, 3): UNKNOWN,
        (key, 1): NONE,
        (key, -1): UNKNOWN,
    }
    assert offsets_of(await fetch(caller, topics=None)) == {("t", 1): 3}
    nothing = await commit(caller, version=version, offsets={(key, 3): 2})
    assert nothing == {(key, 3): UNKNOWN}
    assert await commit(caller, version=version, offsets={}) == {}


async def test_a_topic_id_that_is_not_known(caller: Caller) -> None:
    await commit(caller, offsets={("t", 0): 5})
    key = _key(caller, 10)
    found = await fetch(caller, version=10, topics={STRANGE_ID: [0, 1], key: [0], None: [2]})
    assert offsets_of(found, 10) == {(STRANGE_ID, 0): -1, (STRANGE_ID, 1): -1, (key, 0): 5, (None, 2): -1}
    assert [[each.error_code for each in topic.partitions] for topic in found.topics] == [
        [ErrorCode.unknown_topic_id] * 2,
        [NONE],
        [ErrorCode.unknown_topic_id],
    ]


async def test_metadata_that_is_too_large(caller: Caller) -> None:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    partitions = [
        {**partition, "committed_metadata": "x" * 4097},
        {**partition, "partition_index": 1, "committed_metadata": None},
    ]
    errors = await commit(caller, offsets={}, topics=[{"name": "t", "partitions": partitions}])
    assert errors == {("t", 0): ErrorCode.offset_metadata_too_large, ("t", 1): NONE}
    found = await fetch(caller, topics={"t": [0, 1]})
    assert [(each.committed_offset, each.metadata) for each in found.topics[0].partitions] == [(-1, ""), (1, "")]


async def test_the_group_without_a_name_has_offsets(caller: Caller) -> None:
    """Kafka supports them for clients older than group names."""
    assert await commit(caller, group="", offsets={("t", 0): 5}) == {("t", 0): NONE}
    assert offsets_of(await fetch(caller, group="", topics=None)) == {("t", 0): 5}


# -- membership ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
async def test_members_of_the_current_generation(caller: Caller, version: int) -> None:
    key, member = _key(caller, version), ClassicMember(caller)
    await member.enter()
    offsets = {(key, 0): 5}

    async def error(generation: int, member_id: str) -> ErrorCode:
        who: dict[str, Any] = {"generation_id_or_member_epoch": generation, "member_id": member_id}
        (error,) = (await commit(caller, version=version, offsets=offsets, **who)).values()
        return error

    assert await error(member.generation, member.member_id) is NONE
    assert await error(member.generation + 1, member.member_id) is ErrorCode.illegal_generation
    assert await error(member.generation, "stranger") is ErrorCode.unknown_member_id
    assert await error(-1, "") is ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
async def test_a_generation_of_a_group_that_is_not_there(caller: Caller, version: int) -> None:
    """Clients of versions with member epochs get GROUP_ID_NOT_FOUND."""
    key = _key(caller, version)
    who: dict[str, Any] = {"generation_id_or_member_epoch": 4, "member_id": "m"}
    (error,) = (await commit(caller, version=version, offsets={(key, 0): 5}, **who)).values()
    assert error is (ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation)


@pytest.mark.parametrize("version", range(7, 11))
async def test_a_static_member_that_was_replaced(caller: Caller, version: int) -> None:
    key, member = _key(caller, version), ClassicMember(caller, instance_id="i")
    await member.enter()
    who: dict[str, Any] = {
        "generation_id_or_member_epoch": member.generation,
        "member_id": "the one before",
        "group_instance_id": "i",
    }
    (error,) = (await commit(caller, version=version, offsets={(key, 0): 5}, **who)).values()
    assert error is ErrorCode.fenced_instance_id


@pytest.mark.parametrize("version", range(2, 5))
async def test_a_retention_of_its_own(caller: Caller, version: int) -> None:
    retention = timedelta(days=300)
    errors = await commit(caller, version=version, offsets={("t", 0): 5}, retention_time=retention)
    assert errors == {("t", 0): NONE}
    assert offsets_of(await fetch(caller, topics={"t": [0]})) == {("t", 0): 5}
    kept = machine_of(caller).tables.offsets.committed["g"]["t"][0]
    assert kept.expires_ms - kept.committed_ms == timedelta(days=300) // timedelta(milliseconds=1)


async def test_a_stranger_reads_offsets_of_a_group_with_members(caller: Caller) -> None:
    member = ClassicMember(caller)
    await member.enter()
    who: dict[str, Any] = {"generation_id_or_member_epoch": member.generation, "member_id": member.member_id}
    await commit(caller, offsets={("t", 0): 5}, **who)
    assert offsets_of(await fetch(caller, topics=None)) == {("t", 0): 5}


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_where_an_error_is_told(version: int) -> None:
    """For the whole group, or for each partition where the version has no other field."""
    async with calling() as caller:  # no client has requested a coordinator: there is none
        key = STRANGE_ID if version >= 10 else "t"
        found = await fetch(caller, version=version, topics={key: [0, 1]})
        if version >= 2:
            assert (found.error_code, found.topics) == (ErrorCode.not_coordinator, ())
        else:
            (topic,) = found.topics
            assert [each.error_code for each in topic.partitions] == [ErrorCode.not_coordinator] * 2
            assert [each.committed_offset for each in topic.partitions] == [-1, -1]
        errors = await commit(caller, offsets={("t", 0): 5})
        assert errors == {("t", 0): UNKNOWN}


@pytest.mark.parametrize("version", COMMIT_VERSIONS)
async def test_a_commit_without_a_coordinator(version: int) -> None:
    async with calling() as caller:
        await caller.create_topic("t")
        key = _key(caller, version)
        assert await commit(caller, version=version, offsets={(key, 0): 5}) == {(key, 0): ErrorCode.not_coordinator}


@pytest.mark.parametrize("version", [9, 10])
async def test_a_topic_without_an_id(caller: Caller, version: int) -> None:
    """It was deleted without the coordinator's knowledge: versions that name topics by id leave it out."""
    await commit(caller, offsets={("t", 0): 5})
    topic = caller.broker.topics.get("t")
    assert topic is not None
    caller.broker.topics.remove(topic)
    found = await fetch(caller, version=version, topics=None)
    caller.broker.topics.add(topic)
    assert offsets_of(found, version) == ({("t", 0): 5} if version == 9 else {})


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_offsets_of_an_open_transaction(caller: Caller, version: int) -> None:
    """Clients that do not require stable offsets get the last committed one."""
    await commit(caller, offsets={("t", 0): 5})
    pending = OffsetRecord("g", "t", 0, CommittedOffset(9, -1, "", 0))
    machine_of(caller).replay(*encode(pending), producer_id=7)
    found = await fetch(caller, version=version, topics={_key(caller, version): [0]})
    (partition,) = found.topics[0].partitions
    expected = (ErrorCode.unstable_offset_commit, -1) if version >= 7 else (NONE, 5)
    assert (partition.error_code, partition.committed_offset) == expected


# -- deleting --------------------------------------------------------------------------------------------------------


async def _delete(caller: Caller, *wanted: tuple[str, int], group: str = "g") -> Any:
    topics = [{"name": topic, "partitions": [{"partition_index": index}]} for topic, index in wanted]
    reply = await ask(caller, DELETE_OFFSETS, 0, group_id=group, topics=topics)
    errors = [each.error_code for topic in reply.topics for each in topic.partitions]
    return reply.error_code, errors


async def test_deleting_offsets(caller: Caller) -> None:
    await commit(caller, offsets={("t", 0): 5, ("t", 1): 6})
    assert await _delete(caller, ("t", 0), ("t", 7), ("strange", 0)) == (NONE, [NONE, UNKNOWN, UNKNOWN])
    assert offsets_of(await fetch(caller, topics=None)) == {("t", 1): 6}
    assert await _delete(caller, ("t", 0), group="nobody") == (ErrorCode.group_id_not_found, [])
    assert await _delete(caller, ("t", 0), group="") == (ErrorCode.invalid_group_id, [])


async def test_offsets_that_a_member_reads_on_from(caller: Caller) -> None:
    await caller.create_topic("u")
    await commit(caller, offsets={("t", 0): 5, ("u", 0): 6})
    member = ClassicMember(caller)
    await member.enter()
    assert await _delete(caller, ("t", 0), ("u", 0)) == (NONE, [ErrorCode.group_subscribed_to_topic, NONE])
    assert offsets_of(await fetch(caller, topics=None)) == {("t", 0): 5}


# -- malformed requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [COMMIT, FETCH])
async def test_a_length_that_is_a_lie(caller: Caller, key: int) -> None:
    with pytest.raises(MalformedRequest):
        await caller.send(request_header(key, 2, 1, "test") + b"\0\x01g" + b"\x7f\xff\xff\xff" * 3)
