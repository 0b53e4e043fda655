"""Static members of the classic protocol keep their partitions while they are away."""

from __future__ import annotations

from typing import Any

from ottla.machines.groups.replies import JoinReply
from ottla.machines.groups.requests import LeavingMember
from tests.support.groups_driver import DELAY_MS, REBALANCE_MS, Groups, subscribe

ORDERS = subscribe("orders")


def rejoin(groups: Groups, member: JoinReply, **more: Any) -> int:
    return groups.join(member_id=member.member_id, **more)


class TestStaticMembers:
    def static(self, groups: Groups, instance_id: str, **more: Any) -> int:
        return groups.send(groups.join_request(instance_id=instance_id, **more))

    def assemble(self, groups: Groups) -> list[JoinReply]:
        tickets = [self.static(groups, name) for name in ("i", "k")]
        groups.wait(DELAY_MS * 2)
        members = [groups.joined(ticket) for ticket in tickets]
        groups.settle(members)
        return members

    def test_one_that_is_back_goes_on_without_a_rebalance(self) -> None:
        groups = Groups()
        leader, other = self.assemble(groups)
        back = groups.joined(self.static(groups, "k"))
        assert back.generation == other.generation
        assert back.member_id != other.member_id
        assert groups.synced(groups.sync(back)).assignment == other.member_id.encode()
        assert groups.beat(leader) == "none"

    def test_its_old_id_is_fenced(self) -> None:
        groups = Groups()
        _, other = self.assemble(groups)
        self.static(groups, "k")
        assert groups.beat(other, instance_id="k") == "fenced_instance_id"
        assert groups.beat(other) == "unknown_member_id"
        refusal = groups.commit("g", 5, generation=1, member_id=other.member_id, instance_id="k")
        assert refusal == "fenced_instance_id"
        assert groups.leave(LeavingMember(member_id=other.member_id, instance_id="k")) == ["fenced_instance_id"]

    def test_a_leader_that_is_back_skips_the_assignment(self) -> None:
        groups = Groups()
        _, other = self.assemble(groups)
        back = groups.joined(self.static(groups, "i"))
        assert back.skip_assignment
        assert {member.member_id for member in back.members} == {back.member_id, other.member_id}
        assert back.leader == back.member_id
        old = groups.joined(self.static(groups, "i", can_skip_assignment=False))
        assert (old.skip_assignment, old.members) == (False, ())
        assert old.leader == back.member_id, "so that it does not take itself for the leader"

    def test_the_new_id_survives_a_failover(self) -> None:
        groups = Groups()
        _, other = self.assemble(groups)
        back = groups.joined(self.static(groups, "k"))
        groups.fail_over()
        assert groups.beat(back, instance_id="k") == "none"
        assert groups.beat(other, instance_id="k") == "fenced_instance_id"

    def test_another_protocol_needs_a_rebalance(self) -> None:
        groups = Groups()
        tickets = [self.static(groups, name, protocols=(("range", ORDERS), ("sticky", ORDERS))) for name in ("i", "k")]
        groups.wait(DELAY_MS * 2)
        members = [groups.joined(ticket) for ticket in tickets]
        groups.settle(members)
        ticket = self.static(groups, "k", protocols=(("sticky", ORDERS),))
        assert ticket not in groups.answers
        assert groups.beat(members[0]) == "rebalance_in_progress"

    def test_while_the_leader_assigns_a_replacement_needs_a_rebalance(self) -> None:
        groups = Groups()
        tickets = [self.static(groups, name) for name in ("i", "k")]
        groups.wait(DELAY_MS * 2)
        _, other = (groups.joined(ticket) for ticket in tickets)
        waiting = groups.sync(other)
        self.static(groups, "k")
        assert groups.synced(waiting).error.name == "fenced_instance_id"
        assert groups.state() == "PreparingRebalance"

    def test_one_that_waits_twice_is_fenced_once(self) -> None:
        groups = Groups()
        first = self.static(groups, "i")
        second = self.static(groups, "i")
        assert groups.joined(first).error.name == "fenced_instance_id"
        groups.wait(DELAY_MS * 2)
        assert groups.joined(second).error.name == "none"

    def test_one_that_is_away_keeps_its_place_in_a_rebalance(self) -> None:
        groups = Groups()
        leader, other = self.assemble(groups)
        ticket = rejoin(groups, leader, rebalance_timeout_ms=6_000, instance_id="i", session_timeout_ms=30_000)
        groups.wait(1)
        groups.coordinator._shard.classic["g"].members[other.member_id].rebalance_timeout_ms = 6_000
        groups.beat(other, instance_id="k")
        while ticket not in groups.answers:
            groups.wait(5_000)
            groups.beat(other, instance_id="k")
        assert {member.instance_id for member in groups.joined(ticket).members} == {"i", "k"}

    def test_one_that_is_back_before_it_synced_is_not_waited_for_under_its_old_id(self) -> None:
        groups = Groups()
        tickets = [self.static(groups, name) for name in ("i", "k")]
        groups.wait(DELAY_MS * 2)
        leader, _ = (groups.joined(ticket) for ticket in tickets)
        groups.sync(leader)
        back = groups.joined(self.static(groups, "k"))
        for _ in range(REBALANCE_MS // 5_000 + 1):
            groups.wait(5_000)
            assert (groups.beat(leader), groups.beat(back)) == ("none", "none")

    def test_while_all_that_remain_are_away_the_group_waits_on(self) -> None:
        groups = Groups()
        tickets = [self.static(groups, name) for name in ("i", "j", "k")]
        groups.wait(DELAY_MS * 2)
        members = [groups.joined(ticket) for ticket in tickets]
        groups.settle(members)
        groups.leave(LeavingMember(instance_id="k"))

        def pass_time() -> None:
            for _ in range(REBALANCE_MS // 5_000 + 1):
                groups.wait(5_000)
                for member in members[:2]:
                    groups.beat(member)

        pass_time()
        assert groups.beat(members[1]) == "rebalance_in_progress"
        ticket = rejoin(groups, members[0], instance_id="i")
        assert ticket not in groups.answers, "the other one has not joined"
        pass_time()
        joined = groups.joined(ticket)
        assert joined.generation == 2
        assert {member.instance_id for member in joined.members} == {"i", "j"}

    def test_an_administrator_removes_it_by_its_name(self) -> None:
        groups = Groups()
        _, other = self.assemble(groups)
        assert groups.leave(LeavingMember(instance_id="k")) == ["none"]
        assert groups.beat(other) == "unknown_member_id"
