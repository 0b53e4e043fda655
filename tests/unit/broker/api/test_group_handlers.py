"""Members of classic groups through the protocol, in every version of their requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.primitives import MalformedRequest
from tests.support.group_caller import (
    DESCRIBE,
    FIND,
    HEARTBEAT,
    JOIN,
    LEAVE,
    REBALANCE,
    SESSION,
    SUBSCRIPTION,
    SYNC,
    ClassicMember,
    ask,
    grouping,
    machine_of,
)
from tests.support.handlers_caller import Caller, calling

NONE = ErrorCode.none


@pytest_asyncio.fixture
async def caller() -> AsyncIterator[Caller]:
    async with grouping() as caller:
        yield caller


# -- finding the coordinator -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_the_coordinator_of_a_group(version: int) -> None:
    async with calling() as caller:
        found = await ask(caller, FIND, version, key="g", key_type=0, coordinator_keys=["g", "h", "g"])
        topic = caller.broker.topics.get("__consumer_offsets")
        assert topic is not None, "the first question creates it"
        assert (topic.internal, topic.partition_count) == (True, 50)
    answers = found.coordinators if version >= 4 else [found]
    assert {(each.error_code, each.node_id, each.host, each.port) for each in answers} == {
        (NONE, 1, "broker.example", 9092)
    }
    if version >= 4:
        assert [each.key for each in answers] == ["g", "h", "g"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(2, ErrorCode.invalid_request), (77, ErrorCode.invalid_request)],
)
@pytest.mark.parametrize("version", range(1, 7))
async def test_no_other_coordinators(caller: Caller, version: int, kind: int, expected: ErrorCode) -> None:
    found = await ask(caller, FIND, version, key="x", key_type=kind, coordinator_keys=["x"])
    answers = found.coordinators if version >= 4 else [found]
    assert [(each.error_code, each.node_id, each.host, each.port) for each in answers] == [(expected, -1, "", -1)]
    assert answers[0].error_message


@pytest.mark.parametrize("version", range(1, 7))
async def test_the_coordinator_of_a_transactional_id(caller: Caller, version: int) -> None:
    found = await ask(caller, FIND, version, key="x", key_type=1, coordinator_keys=["x"])
    answers = found.coordinators if version >= 4 else [found]
    assert [(each.error_code, each.node_id) for each in answers] == [(ErrorCode.none, caller.broker.node_id)]
    topic = caller.broker.topics.get("__transaction_state")
    assert topic is not None
    assert (topic.partition_count, topic.config.durability) == (50, Durability.DISK)


# -- one member ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
async def test_a_lone_member(caller: Caller, version: int) -> None:
    member = ClassicMember(caller, version=version)
    first = await member.ask_to_join()
    if version >= 4:
        assert first.error_code is ErrorCode.member_id_required
        assert first.member_id.startswith("test-")
        assert first.generation_id == -1
        assert first.protocol_name == ("" if version < 7 else None)
        member.member_id = first.member_id
    joined = await member.join() if version >= 4 else first
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (NONE, 1, "range")
    assert joined.leader == joined.member_id
    (only,) = joined.members
    assert (only.member_id, only.metadata) == (joined.member_id, SUBSCRIPTION)
    if version >= 7:
        assert joined.protocol_type == "consumer"
    if version >= 9:
        assert joined.skip_assignment is False


@pytest.mark.parametrize("version", range(6))
async def test_its_assignment(caller: Caller, version: int) -> None:
    member = ClassicMember(caller)
    await member.join()
    synced = await member.sync({member.member_id: b"mine", "stranger": b"?"}, version=version)
    assert (synced.error_code, synced.assignment) == (NONE, b"mine")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    again = await member.sync(version=version)
    assert (again.error_code, again.assignment) == (NONE, b"mine")


@pytest.mark.parametrize("missing", [{"protocol_type": None}, {"protocol_name": None}, {"protocol_name": "other"}])
async def test_the_protocol_has_to_be_named(caller: Caller, missing: dict[str, Any]) -> None:
    member = ClassicMember(caller)
    await member.join()
    refused = await member.sync({member.member_id: b"mine"}, **missing)
    assert (refused.error_code, refused.assignment) == (ErrorCode.inconsistent_group_protocol, b"")
    if None not in missing.values():
        return
    assert (await member.sync({member.member_id: b"mine"}, version=4)).error_code is NONE, "old versions do not"


@pytest.mark.parametrize("version", range(5))
async def test_heartbeats(caller: Caller, version: int) -> None:
    member = ClassicMember(caller)
    await member.enter()
    assert await member.heartbeat(version=version) is NONE
    assert await member.heartbeat(version=version, generation_id=7) is ErrorCode.illegal_generation
    assert await member.heartbeat(version=version, member_id="nobody") is ErrorCode.unknown_member_id
    assert await member.heartbeat(version=version, group_id="other") is ErrorCode.unknown_member_id
    assert await member.heartbeat(version=version, group_id="") is ErrorCode.invalid_group_id


async def test_everybody_is_alive_while_the_log_is_read() -> None:
    """With any other reply a member would rejoin without need."""
    async with calling() as caller:
        await ask(caller, FIND, 6, key_type=0, coordinator_keys=["g"])
        heard = []
        for number in range(200):
            # Neither request yields to the loop, so the coordinator is still loading at the second one.
            member = ClassicMember(caller, group=f"g{number}", member_id="m", generation=1)
            described = await ask(caller, DESCRIBE, 6, groups=[member.group], include_authorized_operations=False)
            if described.groups[0].error_code is ErrorCode.coordinator_load_in_progress:
                heard.append(await member.heartbeat())
        assert heard
        assert set(heard) == {NONE}


@pytest.mark.parametrize("version", [0, 1])
async def test_how_long_members_have_to_join_again(caller: Caller, version: int) -> None:
    """Before the rebalance timeout existed, it was the session timeout."""
    member = ClassicMember(caller, version=version)
    await member.enter()
    (kept,) = machine_of(caller).tables.classic["g"].members
    expected = SESSION if version == 0 else REBALANCE
    assert kept.rebalance_timeout_ms == expected // timedelta(milliseconds=1)


async def test_no_name_is_the_name_of_a_group(caller: Caller) -> None:
    member = ClassicMember(caller, group="")
    assert (await member.join()).error_code is ErrorCode.invalid_group_id
    assert (await member.sync()).error_code is ErrorCode.invalid_group_id
    left = await ask(caller, LEAVE, 5, group_id="", members=[{"member_id": "m", "group_instance_id": None}])
    assert (left.error_code, left.members) == (ErrorCode.invalid_group_id, ())


@pytest.mark.parametrize("version", range(10))
async def test_a_join_that_is_refused(caller: Caller, version: int) -> None:
    member = ClassicMember(caller, version=version, member_id="mine")
    unknown = await member.ask_to_join()
    assert (unknown.error_code, unknown.member_id) == (ErrorCode.unknown_member_id, "mine")
    member.member_id = ""
    short = await member.ask_to_join(session_timeout=timedelta(milliseconds=5))
    assert short.error_code is ErrorCode.invalid_session_timeout
    assert (short.generation_id, short.leader, short.members) == (-1, "", ())
    no_protocol = await member.ask_to_join(protocols=())
    assert no_protocol.error_code is ErrorCode.inconsistent_group_protocol


# -- leaving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_leaving_alone(caller: Caller, version: int) -> None:
    member = ClassicMember(caller)
    await member.enter()
    stranger = await ask(caller, LEAVE, version, group_id="g", member_id="stranger")
    assert stranger.error_code is ErrorCode.unknown_member_id
    left = await ask(caller, LEAVE, version, group_id="g", member_id=member.member_id)
    assert left.error_code is NONE
    assert await member.heartbeat() is ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", range(3, 6))
async def test_removing_several(caller: Caller, version: int) -> None:
    member = ClassicMember(caller, instance_id="i")
    await member.enter()
    leaving = [
        {"member_id": "stranger", "group_instance_id": None},
        {"member_id": "", "group_instance_id": "i"},
    ]
    left = await ask(caller, LEAVE, version, group_id="g", members=leaving)
    assert left.error_code is NONE
    assert [(each.member_id, each.group_instance_id, each.error_code) for each in left.members] == [
        ("stranger", None, ErrorCode.unknown_member_id),
        ("", "i", NONE),
    ]
    assert await member.heartbeat() is ErrorCode.unknown_member_id


# -- several members -------------------------------------------------------------------------------------------------


async def test_members_wait_for_one_another(caller: Caller) -> None:
    """Every member has its own connection: a waiting request blocks only that connection."""
    first, second = ClassicMember(caller), ClassicMember(caller, version=3)
    await first.enter()
    joining = asyncio.create_task(second.join())
    await first.until_rebalance()
    assert not joining.done()
    joined = await first.join()
    assert (await joining).generation_id == joined.generation_id == 2
    assert {each.member_id for each in joined.members} == {first.member_id, second.member_id}
    assert (await joining).members == ()
    syncing = asyncio.create_task(second.sync())
    await asyncio.sleep(0.01)
    assert not syncing.done()
    await first.sync({first.member_id: b"1", second.member_id: b"2"})
    assert (await syncing).assignment == b"2"


@pytest.mark.parametrize("version", [8, 9])
async def test_a_static_leader_that_comes_back(caller: Caller, version: int) -> None:
    """From version 9 on it is told to skip the assignment; before that, that another member leads."""
    member = ClassicMember(caller, version=version, instance_id="i")
    await member.enter()
    old_id, member.member_id = member.member_id, ""
    joined = await member.join()
    assert joined.generation_id == 1
    assert joined.member_id != old_id
    if version == 9:
        assert (joined.leader, joined.skip_assignment) == (joined.member_id, True)
    else:
        assert (joined.leader, joined.members) == (old_id, ())
    assert await member.heartbeat(member_id=old_id) is ErrorCode.fenced_instance_id


# -- shutdown and malformed requests ---------------------------------------------------------------------------------


async def test_a_broker_that_stops_answers_those_who_wait(caller: Caller) -> None:
    """Otherwise a joining member would delay the shutdown until the rebalance is over."""
    first, second = ClassicMember(caller), ClassicMember(caller, version=3)
    await first.enter()
    joining = asyncio.create_task(second.join())
    await first.until_rebalance()
    caller.broker.begin_shutdown()
    refused = await asyncio.wait_for(joining, 5)
    assert refused.error_code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
    late = await asyncio.wait_for(ClassicMember(caller, version=3).join(), 5)
    assert late.error_code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)


@pytest.mark.parametrize(
    ("key", "body"),
    [
        (JOIN, b"\0\x01g" + b"\0\0\x27\x10" + b"\0\0" + b"\0\x01p" + b"\x7f\xff\xff\xff"),
        (SYNC, b"\0\x01g" + b"\0\0\0\1" + b"\0\x01m" + b"\x7f\xff\xff\xff"),
        (HEARTBEAT, b"\0\x01g" + b"\0\0\0\1" + b"\x7f\xffm"),
        (LEAVE, b"\0\x01g" + b"\x7f\xffm"),
    ],
)
async def test_a_length_that_is_a_lie(caller: Caller, key: int, body: bytes) -> None:
    """An array length of two billion in a frame of a few bytes."""
    with pytest.raises(MalformedRequest):
        await caller.send(request_header(key, 0, 1, "test") + body)


async def test_a_member_with_a_great_deal_to_say(caller: Caller) -> None:
    """Two megabytes of protocols are rejected or accepted. The coordinator continues in either case."""
    neighbour = ClassicMember(caller)
    await neighbour.enter()
    member = ClassicMember(caller, group="g2")
    huge = [(f"p{number}", b"x" * 1000) for number in range(2000)]
    joined = await member.join(protocols=huge)
    assert joined.error_code in (NONE, ErrorCode.message_too_large, ErrorCode.unknown_server_error)
    assert await neighbour.heartbeat() is NONE
