"""Groups as administrators see them through the protocol, and members of the consumer protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from ottla.protocol.model.errors import ErrorCode
from tests.support.group_caller import (
    BEAT,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONSUMER,
    LIST,
    SUBSCRIPTION,
    ClassicMember,
    ask,
    commit,
    fetch,
    grouping,
    offsets_of,
)
from tests.support.handlers_caller import Caller, calling

NONE, NOT_FOUND = ErrorCode.none, ErrorCode.group_id_not_found
NOT_ASKED = -(2**31)
ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Read, delete, describe, describe configs and alter configs."""


@pytest_asyncio.fixture
async def caller() -> AsyncIterator[Caller]:
    async with grouping() as caller:
        await caller.create_topic("t", 3)
        yield caller


async def beat(caller: Caller, *, version: int = 1, **values: Any) -> Any:
    """Sends the heartbeat of a joining member, unless the fields say otherwise."""
    request: dict[str, Any] = {
        "group_id": "c",
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": timedelta(seconds=30),
        "subscribed_topic_names": ["t"],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    return await ask(caller, BEAT, version, **{**request, **values})


def assigned_in(reply: Any) -> set[tuple[UUID, int]]:
    return {(topic.topic_id, index) for topic in reply.assignment.topic_partitions for index in topic.partitions}


UNCHANGED = {"rebalance_timeout": timedelta(milliseconds=-1), "subscribed_topic_names": None, "topic_partitions": None}


# -- listing ---------------------------------------------------------------------------------------------------------


async def _three_groups(caller: Caller) -> None:
    await ClassicMember(caller, group="classic").enter()
    await commit(caller, group="offsets", offsets={("t", 0): 1})
    await beat(caller)


@pytest.mark.parametrize("version", range(6))
async def test_listing(caller: Caller, version: int) -> None:
    await _three_groups(caller)
    reply = await ask(caller, LIST, version, states_filter=[], types_filter=[])
    assert reply.error_code is NONE
    listed = {each.group_id: each for each in reply.groups}
    assert {name: each.protocol_type for name, each in listed.items()} == {
        "classic": "consumer",
        "offsets": "",
        "c": "consumer",
    }
    if version >= 4:
        assert {name: each.group_state for name, each in listed.items()} == {
            "classic": "Stable",
            "offsets": "Empty",
            "c": "Stable",
        }
    if version >= 5:
        assert {name: each.group_type for name, each in listed.items()} == {
            "classic": "classic",
            "offsets": "classic",
            "c": "consumer",
        }


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        (["Empty"], [], {"offsets"}),
        (["stable"], ["classic"], {"classic"}),
        ([], ["Consumer"], {"c"}),
        (["Dead"], [], set()),
        ([], ["nonsense"], set()),
    ],
)
async def test_filters(caller: Caller, states: list[str], types: list[str], expected: set[str]) -> None:
    await _three_groups(caller)
    reply = await ask(caller, LIST, 5, states_filter=states, types_filter=types)
    assert {each.group_id for each in reply.groups} == expected


async def test_a_broker_without_groups() -> None:
    """Listing does not create the topic of groups."""
    async with calling() as caller:
        listed = await ask(caller, LIST, 5, states_filter=[], types_filter=[])
        assert (listed.error_code, listed.groups) == (NONE, ())
        assert caller.broker.topics.get("__consumer_offsets") is None


# -- describing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_describing_a_classic_group(caller: Caller, version: int) -> None:
    member = ClassicMember(caller, instance_id="i")
    await member.enter()
    reply = await ask(caller, DESCRIBE, version, groups=["g", "absent", ""], include_authorized_operations=True)
    group, absent, unnamed = reply.groups
    assert (group.error_code, group.group_id, group.group_state) == (NONE, "g", "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    (only,) = group.members
    assert (only.member_id, only.client_id, only.client_host) == (member.member_id, "test", "/127.0.0.1")
    assert (only.member_metadata, only.member_assignment) == (SUBSCRIPTION, b"all")
    if version >= 3:
        assert group.authorized_operations == ALL_OPERATIONS
    if version >= 4:
        assert only.group_instance_id == "i"
    for dead in (absent, unnamed):
        assert (dead.group_state, dead.members) == ("Dead", ())
        assert dead.error_code is (NOT_FOUND if version >= 6 else NONE)
    if version >= 6:
        assert (group.error_message, bool(absent.error_message)) == (None, True)


@pytest.mark.parametrize("version", range(2))
async def test_describing_a_consumer_group(caller: Caller, version: int) -> None:
    topic = caller.broker.topics.get("t")
    assert topic is not None
    joined = await beat(caller, rack_id="r", server_assignor="range")
    asked = {"group_ids": ["c", "absent", ""], "include_authorized_operations": True}
    reply = await ask(caller, DESCRIBE_CONSUMER, version, **asked)
    group, absent, unnamed = reply.groups
    assert (group.error_code, group.group_id, group.group_state) == (NONE, "c", "Stable")
    assert (group.group_epoch, group.assignment_epoch) == (joined.member_epoch, joined.member_epoch)
    assert (group.assignor_name, group.authorized_operations) == ("range", ALL_OPERATIONS)
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.rack_id) == ("m", joined.member_epoch, "r")
    assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (("t",), None)
    for assignment in (member.assignment, member.target_assignment):
        (of_topic,) = assignment.topic_partitions
        assert (of_topic.topic_id, of_topic.topic_name, of_topic.partitions) == (topic.id, "t", (0, 1, 2))
    if version >= 1:
        assert member.member_type == 1
    assert (absent.error_code, bool(absent.error_message)) == (NOT_FOUND, True)
    assert unnamed.error_code is ErrorCode.invalid_group_id


async def test_each_protocol_has_a_description_of_its_own(caller: Caller) -> None:
    await _three_groups(caller)
    flags = {"include_authorized_operations": False}
    (as_classic,) = (await ask(caller, DESCRIBE, 6, groups=["c"], **flags)).groups
    (as_consumer,) = (await ask(caller, DESCRIBE_CONSUMER, 1, group_ids=["classic"], **flags)).groups
    assert (as_classic.error_code, as_consumer.error_code) == (NOT_FOUND, NOT_FOUND)
    (quiet,) = (await ask(caller, DESCRIBE, 6, groups=["classic"], **flags)).groups
    assert quiet.authorized_operations == NOT_ASKED


async def test_a_great_many_groups(caller: Caller) -> None:
    await ClassicMember(caller).enter()
    names = [f"absent-{number}" for number in range(500)]
    reply = await ask(caller, DESCRIBE, 6, groups=[*names, "g"], include_authorized_operations=False)
    assert [each.group_id for each in reply.groups] == [*names, "g"]
    assert [each.group_state for each in reply.groups] == ["Dead"] * 500 + ["Stable"]


# -- deleting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_deleting(caller: Caller, version: int) -> None:
    await _three_groups(caller)
    reply = await ask(caller, DELETE, version, groups_names=["offsets", "classic", "absent", "c", "offsets", ""])
    assert {each.group_id: each.error_code for each in reply.results} == {
        "offsets": NONE,
        "classic": ErrorCode.non_empty_group,
        "c": ErrorCode.non_empty_group,
        "absent": NOT_FOUND,
        "": NOT_FOUND,
    }
    assert len(reply.results) == 5
    assert offsets_of(await fetch(caller, group="offsets", topics=None)) == {}
    listed = await ask(caller, LIST, 5, states_filter=[], types_filter=[])
    assert {each.group_id for each in listed.groups} == {"classic", "c"}


# -- the consumer protocol -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2))
async def test_a_member_comes_and_goes(caller: Caller, version: int) -> None:
    topic = caller.broker.topics.get("t")
    assert topic is not None
    joined = await beat(caller, version=version)
    assert (joined.error_code, joined.error_message, joined.member_id) == (NONE, None, "m")
    assert joined.member_epoch > 0
    assert joined.heartbeat_interval == timedelta(seconds=5)
    assert assigned_in(joined) == {(topic.id, index) for index in range(3)}
    epoch = {"member_epoch": joined.member_epoch}
    quiet = await beat(caller, version=version, **epoch, **UNCHANGED)
    assert (quiet.error_code, quiet.assignment) == (NONE, None)
    owned = [{"topic_id": topic.id, "partitions": [0, 1, 2]}]
    whole = await beat(caller, version=version, **epoch, topic_partitions=owned)
    assert assigned_in(whole) == assigned_in(joined)
    stale = await beat(caller, version=version, member_epoch=joined.member_epoch + 9, **UNCHANGED)
    assert stale.error_code is ErrorCode.fenced_member_epoch
    assert stale.error_message
    left = await beat(caller, version=version, **{**UNCHANGED, "member_epoch": -1})
    assert (left.error_code, left.member_epoch) == (NONE, -1)
    gone = await beat(caller, version=version, **epoch, **UNCHANGED)
    assert gone.error_code is ErrorCode.unknown_member_id


async def test_who_makes_up_the_id(caller: Caller) -> None:
    """In version 0 the coordinator generates the id, from version 1 on the member."""
    joined = await beat(caller, version=0, member_id="")
    assert (joined.error_code, bool(joined.member_id)) == (NONE, True)
    refused = await beat(caller, version=1, member_id="")
    assert (refused.error_code, refused.member_id) == (ErrorCode.invalid_request, None)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"group_id": ""}, ErrorCode.invalid_request),
        ({"member_epoch": -3}, ErrorCode.invalid_request),
        ({"member_epoch": 5}, NOT_FOUND),
        ({"server_assignor": "sticky"}, ErrorCode.unsupported_assignor),
        ({"subscribed_topic_regex": "("}, ErrorCode.invalid_regular_expression),
        ({"topic_partitions": [{"topic_id": None, "partitions": [0]}]}, ErrorCode.invalid_request),
        ({"rebalance_timeout": timedelta(milliseconds=-1)}, ErrorCode.invalid_request),
    ],
)
async def test_a_wrong_heartbeat(caller: Caller, wrong: dict[str, Any], expected: ErrorCode) -> None:
    refused = await beat(caller, **wrong)
    assert refused.error_code is expected
    assert refused.error_message
    assert refused.assignment is None


async def test_a_subscription_by_a_regular_expression(caller: Caller) -> None:
    other = await caller.create_topic("tea")
    await caller.create_topic("coffee")
    topic = caller.broker.topics.get("t")
    assert topic is not None
    joined = await beat(caller, subscribed_topic_names=None, subscribed_topic_regex="te?a?")
    assert assigned_in(joined) == set()
    no_timeout = timedelta(milliseconds=-1)
    unchanged: dict[str, Any] = {
        "subscribed_topic_names": None,
        "topic_partitions": None,
        "rebalance_timeout": no_timeout,
    }
    resolved = await beat(caller, member_epoch=joined.member_epoch, **unchanged)
    assert assigned_in(resolved) == {(topic.id, index) for index in range(3)} | {(other.id, 0)}


async def test_offsets_of_its_members(caller: Caller) -> None:
    joined = await beat(caller)
    who = {"generation_id_or_member_epoch": joined.member_epoch, "member_id": "m"}
    assert await commit(caller, group="c", offsets={("t", 0): 4}, **who) == {("t", 0): NONE}
    stale = await commit(caller, group="c", offsets={("t", 0): 3}, **{**who, "generation_id_or_member_epoch": 99})
    assert stale == {("t", 0): ErrorCode.stale_member_epoch}
    old = await commit(caller, group="c", version=8, offsets={("t", 0): 3}, **who)
    assert old == {("t", 0): ErrorCode.unsupported_version}
    mine = await fetch(caller, group="c", topics=None, member_id="m", member_epoch=joined.member_epoch)
    assert offsets_of(mine) == {("t", 0): 4}
    wrong = await fetch(caller, group="c", topics=None, member_id="m", member_epoch=99)
    assert (wrong.error_code, wrong.topics) == (ErrorCode.stale_member_epoch, ())
    stranger = await fetch(caller, group="c", topics=None, member_id="x", member_epoch=1)
    assert (stranger.error_code, stranger.topics) == (ErrorCode.unknown_member_id, ())
    assert offsets_of(await fetch(caller, group="c", topics=None)) == {("t", 0): 4}, "anybody may look"
