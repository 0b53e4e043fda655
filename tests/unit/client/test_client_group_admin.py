"""The admin client with coordinators that move, are unavailable, or die during a request; the computed lag."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from ottla.client import Admin, TopicPartition
from ottla.client.admin.group_descriptions import (
    GroupDescription,
    GroupMember,
    GroupOffset,
    assigned_partitions,
    subscribed_topics,
)
from ottla.client.admin.group_lag import LogEnds, group_lag_of
from ottla.client.errors import BrokerRefusedError, GroupNotEmptyError, UnknownGroupError, UnsupportedByBrokerError
from ottla.client.groups.classic_formats import encode_assignment
from ottla.protocol.model.errors import ErrorCode
from tests.support.scripted_coordinator import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    OFFSET_FETCH,
    ScriptedCoordinator,
)

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(30):
            return await work

    return asyncio.run(limited())


MOVES = [ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available]


@pytest.mark.parametrize("api_key", [CONSUMER_GROUP_DESCRIBE, DESCRIBE_GROUPS, OFFSET_FETCH])
def test_a_coordinator_that_moves_is_asked_again(api_key: int) -> None:
    async def work() -> None:
        broker = ScriptedCoordinator(groups={"g"}, failures={api_key: deque(MOVES)})
        async with broker, Admin(broker.bootstrap) as admin:
            assert (await admin.describe_group("g")).state == "Empty"
            assert await admin.group_offsets("g") == {}
        assert broker.asked[api_key] == len(MOVES) + 1

    run(work())


@pytest.mark.parametrize("api_key", [FIND_COORDINATOR, LIST_GROUPS])
def test_a_coordinator_that_is_away_for_a_moment(api_key: int) -> None:
    async def work() -> None:
        broker = ScriptedCoordinator(
            groups={"g"}, failures={api_key: deque([ErrorCode.coordinator_not_available, ErrorCode.not_coordinator])}
        )
        async with broker, Admin(broker.bootstrap) as admin:
            assert [each.name for each in await admin.list_groups()] == ["g"]
            assert set(await admin.describe_groups(["g"])) == {"g"}

    run(work())


def test_a_coordinator_that_stays_away() -> None:
    async def work() -> None:
        broker = ScriptedCoordinator(failures={FIND_COORDINATOR: deque([ErrorCode.coordinator_not_available] * 1000)})
        async with broker, Admin(broker.bootstrap, request_timeout_ms=300) as admin:
            with pytest.raises(BrokerRefusedError, match='group "g": no broker coordinates the group at the moment'):
                await admin.group_offsets("g")

    run(work())


def test_a_group_that_is_not_there() -> None:
    async def work() -> None:
        broker = ScriptedCoordinator()
        async with broker, Admin(broker.bootstrap) as admin:
            assert await admin.describe_groups(["g"]) == {}
            with pytest.raises(UnknownGroupError, match='group "g": there is no such group'):
                await admin.group_lag("g")
            assert isinstance((await admin.delete_groups(["g"]))["g"], UnknownGroupError)

    run(work())


def test_a_broker_that_knows_no_consumer_protocol() -> None:
    async def work() -> None:
        broker = ScriptedCoordinator(groups={"g"})
        del broker.versions[CONSUMER_GROUP_DESCRIBE]
        broker.versions[LIST_GROUPS] = (4, 4)
        async with broker, Admin(broker.bootstrap) as admin:
            assert (await admin.describe_group("g")).type == "classic"
            assert [each.type for each in await admin.list_groups()] == [None]
            with pytest.raises(UnsupportedByBrokerError, match="does not support group types"):
                await admin.list_groups(types=["consumer"])

    run(work())


def test_a_deletion_whose_answer_was_lost_is_done() -> None:
    async def work() -> None:
        broker = ScriptedCoordinator(groups={"g"}, failures={DELETE_GROUPS: deque([None])}, does_it_anyway=True)
        async with broker, Admin(broker.bootstrap) as admin:
            assert await admin.delete_groups(["g"]) == {}
        assert broker.asked[DELETE_GROUPS] == 2

    run(work())


@pytest.mark.parametrize("error", [ErrorCode.unknown_member_id, ErrorCode.stale_member_epoch])
def test_offsets_of_a_group_with_members_stay(error: ErrorCode) -> None:
    async def work() -> None:
        broker = ScriptedCoordinator(groups={"g"}, commit_error=error)
        async with broker, Admin(broker.bootstrap) as admin:
            with pytest.raises(GroupNotEmptyError, match="it has members; stop them first"):
                await admin.alter_group_offsets("g", {("orders", 0): 5})

    run(work())


def test_a_commit_that_one_partition_is_refused() -> None:
    async def work() -> None:
        broker = ScriptedCoordinator(groups={"g"}, commit_error=ErrorCode.unknown_topic_or_partition)
        async with broker, Admin(broker.bootstrap) as admin:
            failures = await admin.alter_group_offsets("g", {("orders", 3): GroupOffset(5)})
        assert {str(at): str(failure) for at, failure in failures.items()} == {
            "orders-3": "orders-3: it does not exist (UNKNOWN_TOPIC_OR_PARTITION)"
        }

    run(work())


# -- members and lag ----------------------------------------------------------------------------------------------


def test_members_that_cannot_be_read_have_nothing() -> None:
    for damaged in (b"", b"\x00", b"\x00\x01\x7f"):
        assert not assigned_partitions(damaged)
        assert not subscribed_topics(damaged)
    orders = TopicPartition("orders", 1)
    assert assigned_partitions(encode_assignment([orders])) == [orders]


def test_lag_of_a_group() -> None:
    read, behind, lost, new, gone = (TopicPartition("orders", index) for index in range(5))
    member = GroupMember("m-1", None, "client", "10.0.0.1", ["orders"], [read, new])
    group = GroupDescription("g", "Stable", "classic", "consumer", "range", 1, members=[member])
    offsets = {read: GroupOffset(10), behind: GroupOffset(4), lost: GroupOffset(2), gone: GroupOffset(7)}
    ends = {
        read: LogEnds(0, 10),
        behind: LogEnds(0, 10),
        lost: LogEnds(5, 10),
        new: LogEnds(0, 8),
        gone: LogEnds(None, None, "it does not exist"),
    }
    lag = group_lag_of(group, offsets, ends, {(behind, 4): 60_000, (lost, 5): None}, now_ms=100_000)
    found = {
        each.at: (each.committed, each.lag, each.lag_seconds, each.missed, each.client_id) for each in lag.partitions
    }
    assert found == {
        read: (10, 0, 0.0, 0, "client"),
        behind: (4, 6, 40.0, 0, None),
        lost: (2, 5, None, 3, None),
        new: (None, None, None, None, "client"),
        gone: (7, None, None, None, None),
    }
    assert [each.problem for each in lag.partitions][-1] == "it does not exist"
    assert (lag.lag, lag.lag_seconds) == (11, 40.0)
    assert lag.first_unread() == {behind: 4, lost: 5}


@pytest.mark.parametrize(
    ("committed", "time_ms", "expected"),
    [([10, 10], None, 0.0), ([10, 4], None, None), ([4, 4], None, None), ([10, 4], 60_000, 40.0), ([], None, None)],
)
def test_unread_records_of_unknown_age_are_not_caught_up(
    committed: list[int], time_ms: int | None, expected: float | None
) -> None:
    group = GroupDescription("g", "Empty", "classic", "consumer", "range", 1, members=[])
    offsets = {TopicPartition("orders", index): GroupOffset(offset) for index, offset in enumerate(committed)}
    times_ms = {(at, 4): time_ms for at in offsets}
    lag = group_lag_of(group, offsets, dict.fromkeys(offsets, LogEnds(0, 10)), times_ms, now_ms=100_000)
    assert lag.lag_seconds == expected
