"""Groups that change their protocol with live members, and classic members of a consumer group."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.machines.groups.config import GroupConfig, MigrationPolicy
from ottla.machines.groups.consumer_protocol import (
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from ottla.machines.groups.records import NOTHING
from ottla.machines.groups.replies import JoinReply
from ottla.machines.groups.requests import LeavingMember, SyncGroup
from tests.support.groups_driver import DELAY_MS, REBALANCE_MS, SESSION_MS, TOPICS, Consumer, Groups

ORDERS = TOPICS["orders"][0]
Named = frozenset[tuple[str, int]]
ALL: Named = frozenset(("orders", index) for index in range(4))


class Classic:
    """A cooperative consumer of the classic protocol: it keeps its partitions while it rejoins."""

    def __init__(self, groups: Groups, instance_id: str | None = None) -> None:
        self.groups = groups
        self.instance_id = instance_id
        self.owned: Named = frozenset()
        self.joined = JoinReply()

    def join(self, **more: Any) -> int:
        ticket = self.groups.join(
            member_id=self.joined.member_id,
            instance_id=self.instance_id,
            protocols=(("cooperative-sticky", write_subscription(Subscription(1, ("orders",), self.owned))),),
            **more,
        )
        if ticket in self.groups.answers:
            self.joined = self.groups.joined(ticket)
        return ticket

    def sync(self, assignments: dict[str, Named] | None = None) -> str:
        """Returns the name of the error."""
        named = tuple((key, write_assignment(value, 1)) for key, value in (assignments or {}).items())
        request = SyncGroup(
            group="g",
            generation=self.joined.generation,
            member_id=self.joined.member_id,
            instance_id=self.instance_id,
            protocol_type="consumer",
            protocol="cooperative-sticky",
            assignments=named,
        )
        reply = self.groups.synced(self.groups.send(request))
        if reply.error.name == "none":
            assigned = read_assignment(reply.assignment)
            assert assigned is not None
            self.owned = assigned
        return reply.error.name

    def beat(self) -> str:
        return self.groups.beat(self.joined, instance_id=self.instance_id)

    def go_on(self) -> None:
        """One step of a consumer's loop."""
        error = self.beat()
        if error == "rebalance_in_progress":
            self.join()
            self.sync()
        elif error == "illegal_generation":
            self.owned = frozenset()
            self.join()
            self.sync()


def classic_group(groups: Groups, size: int = 2, **more: Any) -> list[Classic]:
    """Creates a stable classic group that shares the four partitions of a topic."""
    members = [Classic(groups, **more) for _ in range(size)]
    tickets = [member.join() for member in members]
    groups.wait(DELAY_MS * 2)
    for member, ticket in zip(members, tickets, strict=True):
        member.joined = groups.joined(ticket)
    assignments = {
        member.joined.member_id: frozenset(("orders", index) for index in range(4) if index % size == place)
        for place, member in enumerate(members)
    }
    for member in members:
        assert member.sync(assignments if member.joined.members else None) == "none"
    return members


def ids(named: Named) -> frozenset[tuple[object, int]]:
    return frozenset((TOPICS[topic][0], index) for topic, index in named)


class TestUpgrade:
    def test_classic_members_stay_and_keep_what_they_have_until_they_gave_it_up(self) -> None:
        groups = Groups()
        old = classic_group(groups)
        new = Consumer(groups, "m").join()
        assert new.error == "none"
        assert new.owned == NOTHING
        for _ in range(4):
            before = {place: member.owned for place, member in enumerate(old)}
            for member in old:
                member.go_on()
            new.beat()
            for place, member in enumerate(old):
                assert not ids(before[place] | member.owned) & new.owned or ids(member.owned) & new.owned == NOTHING
        owned = [ids(member.owned) for member in old] + [new.owned]
        assert sorted(map(len, owned)) == [1, 1, 2]
        assert frozenset().union(*owned) == ids(ALL)
        assert groups.tables.classic == {}
        assert new.epoch == 3, "it goes on from the generation"

    def test_those_who_wait_are_sent_back(self) -> None:
        groups = Groups()
        leader, _ = classic_group(groups)
        ticket = leader.join()
        assert ticket not in groups.answers
        Consumer(groups, "m").join()
        assert groups.joined(ticket).error.name == "rebalance_in_progress"
        assert groups.coordinator.waiting == 0

    def test_the_last_classic_member_goes(self) -> None:
        groups = Groups()
        (old,) = classic_group(groups, 1)
        new = Consumer(groups, "m").join()
        assert groups.leave(LeavingMember(member_id=old.joined.member_id)) == ["none"]
        assert len(new.beat().owned) == 4

    def test_an_empty_group_keeps_its_offsets_and_its_numbers(self) -> None:
        groups = Groups()
        classic_group(groups)
        groups.wait(SESSION_MS)
        groups.commit("g", 5)
        assert Consumer(groups, "m").join().epoch == 3
        assert groups.committed("g") == 5

    @pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
    def test_not_if_the_policy_says_no(self, policy: MigrationPolicy) -> None:
        groups = Groups(GroupConfig(migration_policy=policy))
        (old, _) = classic_group(groups)
        assert Consumer(groups, "m").join().error == "group_id_not_found"
        assert old.beat() == "none"

    def test_not_if_its_members_are_no_consumers(self) -> None:
        groups = Groups()
        groups.assemble(protocol_type="connect")
        assert Consumer(groups, "m").join().error == "group_id_not_found"

    def test_not_if_its_subscriptions_cannot_be_read(self) -> None:
        groups = Groups()
        member = groups.assemble()[0]  # its assignment cannot be parsed
        assert Consumer(groups, "m").join().error == "group_id_not_found"
        assert groups.beat(member) == "none"

    def test_not_if_it_is_too_large(self) -> None:
        groups = Groups(GroupConfig(consumer_size_max=2))
        (old, _) = classic_group(groups)
        assert Consumer(groups, "m").join().error == "group_max_size_reached"
        assert old.beat() == "none"

    def test_a_member_that_is_silent_meanwhile_is_out(self) -> None:
        groups = Groups()
        old = classic_group(groups)
        new = Consumer(groups, "m").join()
        groups.wait(SESSION_MS - 1)
        old[0].go_on()
        groups.wait(1)
        for _ in range(3):
            old[0].go_on()
            new.beat()
        assert old[1].beat() == "unknown_member_id"
        assert ids(old[0].owned) | new.owned == ids(ALL)

    def test_a_failover_in_the_middle(self) -> None:
        groups = Groups()
        old = classic_group(groups)
        new = Consumer(groups, "m").join()
        for _ in range(4):
            groups.fail_over()
            for member in old:
                member.go_on()
            groups.fail_over()
            new.beat()
        assert sorted(map(len, [*(member.owned for member in old), new.owned])) == [1, 1, 2]


class TestGuests:
    def mixed(self, groups: Groups) -> tuple[Classic, Consumer]:
        new = Consumer(groups, "m").join()
        old = Classic(groups)
        old.join()
        for _ in range(3):
            old.go_on()
            new.beat()
        assert (len(old.owned), len(new.owned)) == (2, 2)
        return old, new

    def test_a_classic_member_joins_a_consumer_group(self) -> None:
        groups = Groups()
        old, new = self.mixed(groups)
        assert ids(old.owned) | new.owned == ids(ALL)
        assert old.joined.generation == new.epoch
        assert old.beat() == "none"

    def test_an_eager_one_has_given_up_everything_when_it_joins(self) -> None:
        groups = Groups()
        old, new = self.mixed(groups)
        new.leave()
        another = Consumer(groups, "n").join()
        assert another.error == "none"
        old.owned = frozenset()
        groups.wait(1)
        old.go_on()
        another.beat()
        assert ids(old.owned) & another.owned == NOTHING

    def test_a_classic_member_commits_in_its_generation(self) -> None:
        groups = Groups()
        old, _ = self.mixed(groups)
        generation, member_id = old.joined.generation, old.joined.member_id
        assert groups.commit("g", 5, generation=generation, member_id=member_id, knows_epochs=False) == "none"
        assert groups.commit("g", 6, generation=generation + 1, member_id=member_id) == "illegal_generation"

    def test_what_it_may_not(self) -> None:
        groups = Groups()
        old, new = self.mixed(groups)
        as_new = JoinReply(member_id="m", generation=new.epoch)
        assert groups.beat(as_new) == "unknown_member_id", "it speaks the other protocol"
        assert groups.leave(LeavingMember(member_id="m")) == ["unknown_member_id"]
        later = JoinReply(member_id=old.joined.member_id, generation=old.joined.generation + 1)
        assert groups.beat(later) == "illegal_generation"
        assert groups.synced(groups.sync(later)).error.name == "illegal_generation"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"protocol_type": "connect"},
            {"protocols": ()},
            {"protocols": (("other", write_subscription(Subscription(1, ("orders",)))),)},
            {"protocols": (("cooperative-sticky", b""),)},
        ],
    )
    def test_protocols_have_to_fit(self, wrong: dict[str, Any]) -> None:
        groups = Groups()
        self.mixed(groups)
        reply = groups.ask(groups.join_request(**wrong))
        assert groups.expect(JoinReply, reply).error.name == "inconsistent_group_protocol"

    def test_a_static_one_that_is_back(self) -> None:
        groups = Groups()
        new = Consumer(groups, "m").join()
        old = Classic(groups, "i")
        old.join()
        for _ in range(3):
            old.go_on()
            new.beat()
        back = Classic(groups, "i")
        back.join()
        assert back.sync() == "none"
        assert back.owned == old.owned
        assert old.beat() == "fenced_instance_id"
        old.join()
        assert old.joined.error.name == "fenced_instance_id"
        assert groups.leave(LeavingMember(member_id=old.joined.member_id, instance_id="i")) == ["fenced_instance_id"]
        assert groups.leave(LeavingMember(instance_id="x"), LeavingMember(instance_id="i")) == [
            "unknown_member_id",
            "none",
        ]
        assert len(new.beat().owned) == 4

    def test_no_more_than_the_group_takes(self) -> None:
        groups = Groups(GroupConfig(consumer_size_max=1))
        Consumer(groups, "m").join()
        reply = groups.expect(JoinReply, groups.ask(groups.join_request()))
        assert reply.error.name == "group_max_size_reached"

    def test_who_is_asked_to_join_and_does_not_is_out(self) -> None:
        groups = Groups()
        old, new = self.mixed(groups)
        Consumer(groups, "n").join()
        for _ in range(REBALANCE_MS // 5_000):
            assert old.beat() == "rebalance_in_progress"
            groups.wait(5_000)
            new.beat()
        assert old.beat() == "unknown_member_id"

    def test_who_joins_and_does_not_sync_is_out(self) -> None:
        groups = Groups()
        old, new = self.mixed(groups)
        old.join()
        for _ in range(REBALANCE_MS // 5_000):
            assert old.beat() == "none"
            groups.wait(5_000)
            new.beat()
        assert old.beat() == "unknown_member_id"


class TestDowngrade:
    def test_when_the_last_member_of_the_consumer_protocol_goes(self) -> None:
        groups = Groups()
        old = classic_group(groups)
        new = Consumer(groups, "m").join()
        for _ in range(3):
            for member in old:
                member.go_on()
            epoch = new.beat().epoch
        assert new.leave() == "none"
        assert groups.tables.consumer == {}
        assert [member.beat() for member in old] == ["rebalance_in_progress"] * 2
        tickets = [member.join() for member in old]
        joined = [
            member.joined if ticket not in groups.answers else groups.joined(ticket)
            for member, ticket in zip(old, tickets, strict=True)
        ]
        assert {reply.generation for reply in joined} == {epoch + 1}
        assert {reply.error.name for reply in joined} == {"none"}

    def test_or_is_silent(self) -> None:
        groups = Groups()
        (old,) = classic_group(groups, 1)
        Consumer(groups, "m").join()
        for _ in range(10):
            old.go_on()
            groups.wait(5_000)
        assert groups.tables.consumer == {}
        assert list(groups.tables.classic) == ["g"]
        assert old.beat() == "none"

    def test_the_silent_one_comes_back(self) -> None:
        """GROUP_ID_NOT_FOUND, Kafka's reply here, makes a Java client fail."""
        groups = Groups()
        (old,) = classic_group(groups, 1)
        silent = Consumer(groups, "m").join()
        for _ in range(10):
            old.go_on()
            groups.wait(5_000)
        assert silent.beat().error == "unknown_member_id"
        assert silent.leave() == "unknown_member_id"
        assert silent.join().error == "none"

    def test_a_failover_afterwards(self) -> None:
        groups = Groups()
        (old,) = classic_group(groups, 1)
        new = Consumer(groups, "m").join()
        for _ in range(3):
            old.go_on()
            new.beat()
        new.leave()
        groups.fail_over()
        assert old.beat() == "rebalance_in_progress"

    @pytest.mark.parametrize("policy", [MigrationPolicy.UPGRADE])
    def test_not_if_the_policy_says_no(self, policy: MigrationPolicy) -> None:
        groups = Groups(GroupConfig(migration_policy=policy))
        old = classic_group(groups)
        new = Consumer(groups, "m").join()
        new.leave()
        for _ in range(3):
            for member in old:
                member.go_on()
        assert groups.tables.classic == {}
        assert ids(old[0].owned) | ids(old[1].owned) == ids(ALL)

    def test_a_static_member_goes_back_to_the_classic_protocol(self) -> None:
        groups = Groups()
        (old,) = classic_group(groups, 1)
        new = Consumer(groups, "m", instance_id="i").join()
        back = Classic(groups, "i")
        ticket = back.join()
        assert groups.tables.consumer == {}
        assert new.beat().error == "group_id_not_found"
        old.join()
        assert groups.joined(ticket).error.name == "none"

    def test_not_for_one_whose_protocol_does_not_fit(self) -> None:
        groups = Groups()
        classic_group(groups, 1)
        new = Consumer(groups, "m", instance_id="i").join()
        other = (("other", write_subscription(Subscription(1, ("orders",)))),)
        reply = groups.expect(JoinReply, groups.ask(groups.join_request(instance_id="i", protocols=other)))
        assert reply.error.name == "inconsistent_group_protocol"
        assert new.beat().error == "none"

    def test_an_empty_group_keeps_its_numbers(self) -> None:
        groups = Groups()
        new = Consumer(groups, "m").join()
        new.leave()
        groups.commit("g", 5)
        (old,) = classic_group(groups, 1)
        assert old.joined.generation == 3
        assert groups.committed("g") == 5


def test_what_the_last_leader_did_not_assign_is_assigned_after_an_upgrade() -> None:
    groups = Groups()
    (old,) = classic_group(groups, 1, instance_id="i")
    old.join()
    old.sync({old.joined.member_id: frozenset({("orders", 1)})})
    assert len(Consumer(groups, "m", instance_id="i").join().owned) == 4


def test_one_that_was_removed_does_not_come_back_with_what_others_have() -> None:
    groups = Groups()
    new = Consumer(groups, "m").join()
    old = Classic(groups)
    old.join()
    for _ in range(3):
        old.go_on()
        new.beat()
    groups.wait(SESSION_MS)
    assert len(new.beat().owned) == 4
    assert len(old.owned) == 2
    old.join()
    assert old.joined.error.name == "unknown_member_id"


def test_a_classic_member_that_does_not_know_its_assignment_yet_keeps_what_it_has() -> None:
    groups = Groups()
    (old,) = classic_group(groups, 1)
    old.join()
    all_but_one = ALL - {("orders", 0)}
    request_of = old.joined.member_id
    groups.send(
        SyncGroup(
            group="g",
            generation=old.joined.generation,
            member_id=request_of,
            assignments=((request_of, write_assignment(all_but_one, 1)),),
        )
    )  # and the reply is lost
    new = Consumer(groups, "m").join()
    assert (ORDERS, 0) not in new.owned


def test_a_static_member_is_upgraded_in_its_place() -> None:
    groups = Groups()
    (old,) = classic_group(groups, 1, instance_id="i")
    new = Consumer(groups, "m", instance_id="i").join()
    assert len(new.owned) == 4
    assert old.beat() == "fenced_instance_id"


def test_subscriptions_and_assignments_there_and_back() -> None:
    for version in range(4):
        owned = ALL if version >= 1 else frozenset()
        subscription = Subscription(
            version, ("orders", "bills"), owned, 3 if version >= 2 else -1, "r" if version >= 3 else None
        )
        assert read_subscription(write_subscription(subscription)) == subscription
    assert read_assignment(write_assignment(ALL, 1)) == ALL
    assert read_assignment(b"") == frozenset()
    for nonsense in (b"\0", b"\xff\xff", b"\0\0\0\0"):
        assert read_subscription(nonsense) is None
        assert read_assignment(nonsense) is None
