"""The classic protocol: join, sync, heartbeat, leave, and members that time out."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.replies import JoinReply, SyncReply
from ottla.machines.groups.requests import LeavingMember, SyncGroup
from tests.support.groups_driver import DELAY_MS, REBALANCE_MS, SESSION_MS, Groups, subscribe

ORDERS = subscribe("orders")


def refused(groups: Groups, **more: Any) -> str:
    reply = groups.ask(groups.join_request(**more))
    return groups.expect(JoinReply, reply).error.name


def rejoin(groups: Groups, member: JoinReply, **more: Any) -> int:
    return groups.join(member_id=member.member_id, **more)


class TestJoin:
    def test_a_new_member_is_given_an_id_first(self) -> None:
        groups = Groups()
        reply = groups.expect(JoinReply, groups.ask(groups.join_request(fresh_id="7")))
        assert reply.error.name == "member_id_required"
        assert reply.member_id == "c-7"

    def test_an_old_client_is_not_asked_to_come_again(self) -> None:
        groups = Groups()
        ticket = groups.send(groups.join_request(needs_known_id=False, fresh_id="7"))
        groups.wait(DELAY_MS)
        assert groups.joined(ticket).member_id == "c-7"

    def test_the_leader_learns_who_is_there(self) -> None:
        groups = Groups()
        tickets = [groups.join(protocols=(("range", subscribe(topic)),)) for topic in ("orders", "bills")]
        groups.wait(DELAY_MS * 2)
        leader, other = (groups.joined(ticket) for ticket in tickets)
        assert leader.leader == other.leader == leader.member_id
        assert [(each.member_id, each.metadata) for each in leader.members] == [
            (leader.member_id, subscribe("orders")),
            (other.member_id, subscribe("bills")),
        ]
        assert other.members == ()
        assert (leader.generation, leader.protocol, leader.protocol_type) == (1, "range", "consumer")

    def test_an_empty_group_waits_for_more_members(self) -> None:
        groups = Groups()
        first = groups.join()
        groups.wait(DELAY_MS - 1)
        second = groups.join()
        groups.wait(1)
        assert first not in groups.answers, "somebody came: wait on"
        groups.wait(DELAY_MS)
        assert groups.joined(first).generation == groups.joined(second).generation == 1

    def test_but_not_longer_than_the_rebalance_timeout(self) -> None:
        groups = Groups()
        tickets = [groups.join()]
        for _ in range(REBALANCE_MS // 1_000 + 5):
            groups.wait(1_000)
            if tickets[0] in groups.answers:
                break
            tickets.append(groups.join())
        assert tickets[0] in groups.answers
        assert groups.elapsed_ms <= REBALANCE_MS

    def test_only_a_known_id_joins(self) -> None:
        groups = Groups()
        assert refused(groups, member_id="x") == "unknown_member_id"
        groups.assemble()
        assert refused(groups, member_id="x") == "unknown_member_id"

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"group": ""}, "invalid_group_id"),
            ({"session_timeout_ms": 5_999}, "invalid_session_timeout"),
            ({"session_timeout_ms": 1_800_001}, "invalid_session_timeout"),
            ({"protocols": ()}, "inconsistent_group_protocol"),
            ({"protocol_type": ""}, "inconsistent_group_protocol"),
        ],
    )
    def test_nonsense_is_refused_and_leaves_nothing(self, wrong: dict[str, object], error: str) -> None:
        groups = Groups()
        assert refused(groups, **wrong) == error
        assert groups.coordinator._shard.classic == {}

    def test_protocols_have_to_fit(self) -> None:
        groups = Groups()
        groups.assemble()
        assert refused(groups, protocol_type="connect") == "inconsistent_group_protocol"
        assert refused(groups, protocols=(("sticky", ORDERS),)) == "inconsistent_group_protocol"

    def test_the_protocol_that_most_prefer_among_those_that_all_have(self) -> None:
        groups = Groups()
        preferences = [("a", "b", "c"), ("c", "b", "a"), ("b", "c"), ("b", "c")]
        tickets = [groups.join(protocols=tuple((name, ORDERS) for name in names)) for names in preferences]
        groups.wait(DELAY_MS * 2)
        assert {groups.joined(ticket).protocol for ticket in tickets} == {"b"}

    def test_no_more_than_the_group_takes(self) -> None:
        groups = Groups(GroupConfig(size_max=2))
        members = groups.assemble(2)
        assert refused(groups) == "group_max_size_reached"
        rejoin(groups, members[0])
        assert groups.state() == "PreparingRebalance"
        assert refused(groups) == "member_id_required", "one of the two has not joined yet"

    def test_a_lowered_limit_lets_the_last_ones_out(self) -> None:
        groups = Groups()
        members = groups.assemble(3)
        groups.config = GroupConfig(size_max=2)
        groups.fail_over()
        assert groups.state() == "PreparingRebalance"
        tickets = [rejoin(groups, member) for member in members]
        assert groups.joined(tickets[2]).error.name == "group_max_size_reached"
        assert [groups.joined(ticket).generation for ticket in tickets[:2]] == [2, 2]


class TestRejoin:
    def test_a_follower_that_has_not_changed_goes_on(self) -> None:
        groups = Groups()
        _, other = groups.assemble(2)
        assert groups.joined(rejoin(groups, other)).generation == 1
        assert groups.state() == "Stable"

    def test_one_that_has_changed_does_not(self) -> None:
        groups = Groups()
        leader, other = groups.assemble(2)
        ticket = rejoin(groups, other, protocols=(("range", subscribe("bills")),))
        assert groups.beat(leader) == "rebalance_in_progress"
        assert ticket not in groups.answers
        again = groups.joined(rejoin(groups, leader))
        assert again.generation == groups.joined(ticket).generation == 2
        assert {member.metadata for member in again.members} == {ORDERS, subscribe("bills")}

    def test_a_leader_that_joins_again_wants_to_assign_anew(self) -> None:
        groups = Groups()
        leader, other = groups.assemble(2)
        rejoin(groups, leader)
        assert groups.beat(other) == "rebalance_in_progress"

    def test_a_lost_reply_is_given_again(self) -> None:
        groups = Groups()
        ticket = groups.join()
        groups.wait(DELAY_MS)
        first = groups.joined(ticket)
        assert groups.joined(rejoin(groups, first)) == first

    def test_the_generation_begins_when_all_have_joined(self) -> None:
        groups = Groups()
        members = groups.assemble(3)
        tickets = [rejoin(groups, members[0]), rejoin(groups, members[1])]
        groups.wait(1_000)
        assert not groups.answers
        tickets.append(rejoin(groups, members[2]))
        assert {groups.joined(ticket).generation for ticket in tickets} == {2}

    def test_whoever_does_not_come_is_out_after_the_rebalance_timeout(self) -> None:
        groups = Groups()
        leader, lazy = groups.assemble(2)
        ticket = rejoin(groups, leader)
        for _ in range(REBALANCE_MS // 5_000):
            assert groups.beat(lazy) == "rebalance_in_progress"
            groups.wait(5_000)
        assert [member.member_id for member in groups.joined(ticket).members] == [leader.member_id]
        assert groups.beat(lazy) == "unknown_member_id"

    def test_a_second_request_takes_the_place_of_the_first(self) -> None:
        groups = Groups()
        leader, other = groups.assemble(2)
        first = rejoin(groups, leader)
        second = rejoin(groups, leader)
        assert groups.joined(first).error.name == "rebalance_in_progress"
        rejoin(groups, other)
        assert groups.joined(second).error.name == "none"
        assert groups.coordinator.waiting == 0

    def test_an_id_that_is_not_used_is_waited_for_until_its_session_ends(self) -> None:
        groups = Groups()
        (leader,) = groups.assemble()
        assert refused(groups) == "member_id_required"
        ticket = rejoin(groups, leader)
        assert ticket not in groups.answers
        groups.wait(SESSION_MS)
        assert groups.joined(ticket).generation == 2


class TestSync:
    def test_everybody_gets_what_the_leader_gives(self) -> None:
        groups = Groups()
        tickets = [groups.join(fresh_id=name) for name in "ab"]
        groups.wait(DELAY_MS * 2)
        leader, other = (groups.joined(ticket) for ticket in tickets)
        waiting = groups.sync(other)
        assert waiting not in groups.answers
        done = groups.sync(leader, c_a=b"A", c_b=b"B", c_z=b"Z")
        assert groups.synced(done) == SyncReply(protocol_type="consumer", protocol="range", assignment=b"A")
        assert groups.synced(waiting).assignment == b"B"
        assert groups.state() == "Stable"
        assert groups.synced(groups.sync(other)).assignment == b"B", "asked again"

    def test_whom_the_leader_forgets_gets_nothing(self) -> None:
        groups = Groups()
        tickets = [groups.join(fresh_id=name) for name in "ab"]
        groups.wait(DELAY_MS * 2)
        leader, other = (groups.joined(ticket) for ticket in tickets)
        groups.sync(leader, c_a=b"A")
        assert groups.synced(groups.sync(other)).assignment == b""

    def test_nor_does_it_keep_what_it_had_in_the_last_generation(self) -> None:
        groups = Groups()
        leader, other = groups.assemble(2)
        tickets = [rejoin(groups, leader), rejoin(groups, other, protocols=(("range", subscribe("bills")),))]
        leader, other = (groups.joined(ticket) for ticket in tickets)
        groups.sync(leader)
        assert groups.synced(groups.sync(other)).assignment == b""

    def test_a_second_request_takes_the_place_of_the_first(self) -> None:
        groups = Groups()
        tickets = [groups.join(fresh_id=name) for name in "ab"]
        groups.wait(DELAY_MS * 2)
        leader, other = (groups.joined(ticket) for ticket in tickets)
        first, second = groups.sync(other), groups.sync(other)
        assert groups.synced(first).error.name == "rebalance_in_progress"
        groups.sync(leader, c_b=b"B")
        assert groups.synced(second).assignment == b"B"
        assert groups.coordinator.waiting == 0

    def test_only_in_the_current_generation_by_its_members(self) -> None:
        groups = Groups()
        (leader,) = groups.assemble()
        ask: dict[str, Any] = {"group": "g", "generation": 1, "member_id": leader.member_id}
        for wrong, error in (
            ({"group": ""}, "invalid_group_id"),
            ({"group": "x"}, "unknown_member_id"),
            ({"generation": 2}, "illegal_generation"),
            ({"member_id": "x"}, "unknown_member_id"),
            ({"instance_id": "x"}, "unknown_member_id"),
            ({"protocol": "sticky"}, "inconsistent_group_protocol"),
            ({"protocol_type": "connect"}, "inconsistent_group_protocol"),
        ):
            reply = groups.ask(SyncGroup(**{**ask, **wrong}))
            assert groups.expect(SyncReply, reply).error.name == error

    def test_a_new_member_sends_everybody_back(self) -> None:
        groups = Groups()
        tickets = [groups.join() for _ in range(2)]
        groups.wait(DELAY_MS * 2)
        _, other = (groups.joined(ticket) for ticket in tickets)
        waiting = groups.sync(other)
        groups.join()
        assert groups.synced(waiting).error.name == "rebalance_in_progress"
        assert groups.synced(groups.sync(other)).error.name == "rebalance_in_progress"

    def test_whoever_does_not_sync_is_out(self) -> None:
        groups = Groups()
        tickets = [groups.join() for _ in range(2)]
        groups.wait(DELAY_MS * 2)
        leader, lazy = (groups.joined(ticket) for ticket in tickets)
        groups.sync(leader)
        for _ in range(REBALANCE_MS // 5_000):
            groups.beat(leader)
            groups.beat(lazy)
            groups.wait(5_000)
        assert groups.beat(lazy) == "unknown_member_id"
        assert groups.beat(leader) == "rebalance_in_progress"


class TestSessions:
    def test_silence_ends_a_membership(self) -> None:
        groups = Groups()
        leader, other = groups.assemble(2)
        groups.wait(SESSION_MS - 1)
        assert groups.beat(leader) == "none"
        groups.wait(1)
        assert groups.beat(leader) == "rebalance_in_progress"
        assert groups.beat(other) == "unknown_member_id"

    def test_of_the_last_member_the_group_is_empty_and_remembers_its_generation(self) -> None:
        groups = Groups()
        groups.assemble()
        groups.wait(SESSION_MS)
        assert groups.state() == "Empty"
        assert groups.tables.classic["g"].generation == 2
        ticket = groups.join()
        groups.wait(DELAY_MS)
        assert groups.joined(ticket).generation == 3

    def test_whoever_waits_for_others_may_be_silent(self) -> None:
        groups = Groups()
        leader, other = groups.assemble(2)
        ticket = rejoin(groups, leader)
        for _ in range(4):
            groups.wait(SESSION_MS - 1)
            groups.beat(other)
        rejoin(groups, other)
        assert groups.joined(ticket).generation == 2

    def test_a_new_member_that_waits_too_long_is_told_to_come_again(self) -> None:
        groups = Groups(GroupConfig(new_member_join_timeout_ms=20_000))
        leader = groups.assemble(rebalance_timeout_ms=600_000)[0]
        ticket = groups.join()
        for _ in range(4):
            groups.wait(5_000)
            groups.beat(leader)
        assert groups.joined(ticket).error.name == "unknown_member_id"

    def test_with_its_first_generation_its_session_begins(self) -> None:
        groups = Groups()
        tickets = [groups.join() for _ in range(2)]
        groups.wait(DELAY_MS)
        groups.wait(DELAY_MS)
        leader, silent = (groups.joined(ticket) for ticket in tickets)
        groups.wait(SESSION_MS - DELAY_MS - 1)
        assert groups.beat(leader) == "none"
        groups.wait(DELAY_MS + 1)
        assert groups.beat(leader) == "rebalance_in_progress"
        assert groups.beat(silent) == "unknown_member_id"

    def test_heartbeats_of_others_are_refused(self) -> None:
        groups = Groups()
        (leader,) = groups.assemble()
        stranger = JoinReply(member_id="x", generation=1)
        assert groups.beat(stranger) == "unknown_member_id"
        assert groups.beat(JoinReply(member_id=leader.member_id, generation=2)) == "illegal_generation"
        assert groups.beat(leader, group="x") == "unknown_member_id"
        assert groups.beat(leader, group="") == "invalid_group_id"


class TestLeave:
    def test_the_others_rebalance(self) -> None:
        groups = Groups()
        leader, other = groups.assemble(2)
        assert groups.leave(LeavingMember(member_id=leader.member_id)) == ["none"]
        assert groups.beat(other) == "rebalance_in_progress"
        again = groups.joined(rejoin(groups, other))
        assert (again.generation, again.leader) == (2, other.member_id)

    def test_the_last_one_leaves_the_group_empty(self) -> None:
        groups = Groups()
        members = groups.assemble(2)
        assert groups.leave(*(LeavingMember(member_id=member.member_id) for member in members)) == ["none", "none"]
        assert groups.state() == "Empty"

    def test_an_id_that_was_only_given_out(self) -> None:
        groups = Groups()
        reply = groups.expect(JoinReply, groups.ask(groups.join_request()))
        assert groups.leave(LeavingMember(member_id=reply.member_id)) == ["none"]
        assert groups.state() == "Dead"

    def test_strangers(self) -> None:
        groups = Groups()
        assert groups.leave(LeavingMember(member_id="x")) == ["unknown_member_id"]
        groups.assemble()
        assert groups.leave(LeavingMember(member_id="x"), LeavingMember(instance_id="i")) == ["unknown_member_id"] * 2
        assert groups.state() == "Stable"

    def test_a_member_that_waits_is_answered(self) -> None:
        groups = Groups()
        ticket = groups.join(fresh_id="a")
        groups.leave(LeavingMember(member_id="c-a"))
        assert groups.joined(ticket).error.name == "unknown_member_id"
        assert groups.coordinator.waiting == 0

    def test_a_member_that_waits_for_its_assignment_is_answered(self) -> None:
        groups = Groups()
        tickets = [groups.join() for _ in range(2)]
        groups.wait(DELAY_MS * 2)
        _, other = (groups.joined(ticket) for ticket in tickets)
        waiting = groups.sync(other)
        groups.leave(LeavingMember(member_id=other.member_id))
        assert groups.synced(waiting).error.name == "unknown_member_id"
        assert groups.coordinator.waiting == 0


class TestFailover:
    def test_a_stable_group_goes_on(self) -> None:
        groups = Groups()
        members = groups.assemble(3)
        groups.fail_over()
        assert [groups.beat(member) for member in members] == ["none"] * 3
        assert groups.synced(groups.sync(members[2])).assignment == members[2].member_id.encode()

    def test_everybody_has_a_whole_session_to_show_up(self) -> None:
        groups = Groups()
        members = groups.assemble(2)
        groups.wait(SESSION_MS - 1)
        groups.fail_over()
        groups.wait(SESSION_MS - 1)
        assert groups.beat(members[0]) == "none"
        groups.wait(1)
        assert groups.beat(members[1]) == "unknown_member_id"

    def test_a_generation_that_was_not_assigned_is_not_used_again_and_keeps_its_members(self) -> None:
        groups = Groups()
        tickets = [groups.join() for _ in range(2)]
        groups.wait(DELAY_MS * 2)
        members = [groups.joined(ticket) for ticket in tickets]
        groups.fail_over()
        assert [groups.beat(member) for member in members] == ["rebalance_in_progress"] * 2
        assert groups.synced(groups.sync(members[0])).error.name == "rebalance_in_progress"
        tickets = [rejoin(groups, member) for member in members]
        assert {groups.joined(ticket).generation for ticket in tickets} == {2}

    def test_an_empty_group_goes_on_counting(self) -> None:
        groups = Groups()
        groups.assemble()
        groups.wait(SESSION_MS)
        groups.fail_over()
        ticket = groups.join()
        groups.wait(DELAY_MS)
        assert groups.joined(ticket).generation == 3
