"""Groups as administrators see them; deadlines; and the coordinator of a group."""

from __future__ import annotations

import pytest

from ottla.machines.groups.placement import partition_of
from ottla.machines.groups.replies import DescribeConsumerReply, DescribeReply, ListGroupsReply
from ottla.machines.groups.requests import DescribeConsumerGroup, DescribeGroup, ListGroups
from ottla.machines.groups.timers import TimerKind, TimerName, Timers
from tests.support.groups_driver import DELAY_MS, SESSION_MS, Consumer, Groups, subscribe


def listed(groups: Groups, states: str = "", types: str = "") -> list[tuple[str, str, str, str]]:
    request = ListGroups(states=frozenset(states.split()), types=frozenset(types.split()))
    found = groups.expect(ListGroupsReply, groups.ask(request)).groups
    return [(each.group, each.protocol_type, each.state, each.type) for each in found]


def describe(groups: Groups, group: str = "g") -> DescribeReply:
    return groups.expect(DescribeReply, groups.ask(DescribeGroup(group=group)))


class TestList:
    def groups(self) -> Groups:
        groups = Groups()
        groups.commit("simple", 1)
        groups.assemble(group="stable")
        groups.join("joining")
        Consumer(groups, "m", group="new").join()
        return groups

    def test_all(self) -> None:
        assert listed(self.groups()) == [
            ("joining", "consumer", "PreparingRebalance", "Classic"),
            ("new", "consumer", "Stable", "Consumer"),
            ("simple", "", "Empty", "Classic"),
            ("stable", "consumer", "Stable", "Classic"),
        ]

    @pytest.mark.parametrize(
        ("states", "types", "names"),
        [
            ("stable", "", ["new", "stable"]),
            ("Stable empty", "", ["new", "simple", "stable"]),
            ("", "consumer", ["new"]),
            ("STABLE", "Classic", ["stable"]),
            ("", "share", []),
            ("Dead", "", []),
        ],
    )
    def test_by_state_and_type(self, states: str, types: str, names: list[str]) -> None:
        assert [each[0] for each in listed(self.groups(), states, types)] == names


class TestDescribe:
    def test_a_stable_group(self) -> None:
        groups = Groups()
        leader, _ = groups.assemble(2)
        found = describe(groups)
        assert (found.state, found.protocol_type, found.protocol) == ("Stable", "consumer", "range")
        member = found.members[0]
        assert member.member_id == leader.member_id
        assert (member.metadata, member.assignment) == (subscribe("orders"), leader.member_id.encode())
        assert (member.client_id, member.client_host) == ("c", "/127.0.0.1")

    def test_while_it_rebalances_nothing_is_said_of_assignments(self) -> None:
        groups = Groups()
        members = groups.assemble(2)
        groups.join(member_id=members[0].member_id)
        found = describe(groups)
        assert (found.state, found.protocol) == ("PreparingRebalance", "")
        assert {(member.metadata, member.assignment) for member in found.members} == {(b"", b"")}

    def test_a_group_that_only_has_offsets(self) -> None:
        groups = Groups()
        groups.commit("g", 1)
        assert (describe(groups).error.name, describe(groups).state) == ("none", "Empty")

    def test_none(self) -> None:
        groups = Groups()
        assert (describe(groups).error.name, describe(groups).state) == ("group_id_not_found", "Dead")

    def test_each_protocol_describes_its_own(self) -> None:
        groups = Groups()
        consumer = Consumer(groups, "m").join()
        assert describe(groups).error.name == "group_id_not_found"
        found = groups.expect(DescribeConsumerReply, groups.ask(DescribeConsumerGroup(group="g")))
        assert (found.state, found.epoch, found.target_epoch, found.assignor) == ("Stable", 1, 1, "uniform")
        (member,) = found.members
        assert (member.member_id, member.current.epoch) == ("m", 1)
        assert member.target == member.current.assigned == consumer.owned
        groups.assemble(group="classic")
        other = groups.expect(DescribeConsumerReply, groups.ask(DescribeConsumerGroup(group="classic")))
        assert other.error.name == "group_id_not_found"

    def test_the_states_of_a_consumer_group(self) -> None:
        groups = Groups()

        def state() -> str:
            return groups.expect(DescribeConsumerReply, groups.ask(DescribeConsumerGroup(group="g"))).state

        first = Consumer(groups, "m").join()
        assert state() == "Stable"
        second = Consumer(groups, "n").join()
        assert state() == "Reconciling"
        first.leave()
        assert state() == "Assigning"
        second.leave()
        assert state() == "Empty"


class TestTimers:
    ONE, OTHER = TimerName(TimerKind.SESSION, "g", "a"), TimerName(TimerKind.SESSION, "g", "b")

    def due(self, timers: Timers, now_ms: int) -> list[TimerName]:
        found = []
        while (name := timers.pop_due(now_ms)) is not None:
            found.append(name)
        return found

    def test_in_order_and_once(self) -> None:
        timers = Timers()
        timers.set(self.ONE, 20)
        timers.set(self.OTHER, 10)
        assert timers.next_ms() == 10
        assert self.due(timers, 9) == []
        assert self.due(timers, 20) == [self.OTHER, self.ONE]
        assert self.due(timers, 99) == []

    def test_moved_later_and_earlier(self) -> None:
        timers = Timers()
        timers.set(self.ONE, 10)
        timers.set(self.ONE, 30)
        assert self.due(timers, 29) == []
        timers.set(self.ONE, 5)
        assert self.due(timers, 29) == [self.ONE]
        assert len(timers) == 0

    def test_cancelled(self) -> None:
        timers = Timers()
        timers.set(self.ONE, 10)
        timers.cancel(self.ONE)
        assert (self.due(timers, 99), timers.next_ms()) == ([], None)

    def test_a_heartbeat_costs_no_memory(self) -> None:
        timers = Timers()
        for now_ms in range(1000):
            timers.set(self.ONE, now_ms + 10)
            timers.pop_due(now_ms)
        assert len(timers._heap) == 1


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        ("", 0),
        ("a", 47),
        ("ab", 5),
        ("polygenelubricants", 0),
        ("Aa", 12),
        ("BB", 12),
        ("hello", 22),
        ("\U0001f600", 49),
    ],
)
def test_the_partition_of_a_group(group: str, partition: int) -> None:
    assert partition_of(group, 50) == partition


def test_a_group_that_is_deleted_and_one_that_expires_leave_nothing() -> None:
    groups = Groups()
    groups.assemble()
    groups.wait(SESSION_MS)
    groups.wait(groups.config.offsets_retention_check_interval_ms)
    assert listed(groups) == []
    assert groups.reloaded().tables.classic == {}


def test_an_id_that_was_given_out_keeps_its_group_from_being_cleaned_up() -> None:
    groups = Groups()
    groups.assemble()
    groups.wait(SESSION_MS)
    groups.wait(groups.config.offsets_retention_check_interval_ms - groups.elapsed_ms % 600_000 - 1_000)
    request = groups.join_request()
    groups.send(request)
    groups.wait(2_000)
    ticket = groups.join(member_id=f"c-{request.fresh_id}")
    groups.wait(DELAY_MS)
    assert groups.joined(ticket).error.name == "none"
