"""Reassignments and elections requested by clients (AlterPartitionReassignments, ElectLeaders)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ottla.coordination.port import Committed, Conflict, LeaseId
from ottla.machines.controller.isr import isr_change
from ottla.machines.controller.partition_requests import (
    ControllerContext,
    ElectionType,
    Outcomes,
    Reassignment,
    TopicPartitionName,
    elect_leaders,
    list_reassignments,
    reassign,
)
from ottla.machines.controller.plan import plan
from ottla.machines.controller.rules import RuleBook, TopicRules
from ottla.machines.controller.state import ControllerEntry, PartitionKey, PartitionState, Versioned
from ottla.machines.controller.writes import Write
from ottla.protocol.model.errors import ErrorCode
from tests.support.controller_store import P0, TOPIC, Store, members, partition

E0 = TopicPartitionName("events", 0)
BOOK = RuleBook()


class World:
    def __init__(self, *states: PartitionState, brokers: int = 5) -> None:
        self.store = Store()
        for broker_id in range(1, brokers + 1):
            self.store.add_broker(broker_id)
        self.store.add_topic(states)
        self.me: Versioned[ControllerEntry] = self.store.add_controller()

    @property
    def controlling(self) -> ControllerContext:
        return ControllerContext(self.store.image(), self.me, BOOK)

    def reassign(self, target: Sequence[int] | None, named: TopicPartitionName = E0) -> ErrorCode | None:
        return self.carry_out(reassign(self.controlling, {named: target}), named)

    def elect(
        self, election_type: ElectionType = ElectionType.PREFERRED, named: TopicPartitionName = E0
    ) -> ErrorCode | None:
        return self.carry_out(elect_leaders(self.controlling, [named], election_type), named)

    def carry_out(self, outcomes: Outcomes, named: TopicPartitionName) -> ErrorCode | None:
        for write in outcomes.writes:
            assert isinstance(self.store.commit(write), Committed)
        refused = outcomes.refused[named]
        return None if refused is None else refused.error

    def plan(self) -> None:
        for write in plan(self.store.image(), self.me, BOOK):
            assert isinstance(self.store.commit(write), Committed)

    def join(self, isr: str) -> None:
        """The leader takes all replicas into its ISR."""
        leader = self.store.state().leader_member
        write = isr_change(self.store.image(), TopicRules(), P0, leader, members(isr))
        assert isinstance(write, Write)
        self.store.commit(write)


# -- reassignments --------------------------------------------------------------------------------------------------


def test_a_reassignment_from_start_to_end() -> None:
    world = World(partition("1 2 3", "1", epoch=3))
    assert world.reassign([4, 5, 3]) is None
    moving = partition("4 5 3 1 2", "1", isr="1 2 3", adding="4 5", removing="1 2", epoch=3)
    assert world.store.state() == moving
    assert list_reassignments(world.store.image()) == {E0: Reassignment((4, 5, 3, 1, 2), (4, 5), (1, 2))}
    world.plan()
    assert world.store.state() == moving
    world.join("1 2 3 4")
    world.plan()
    world.join("1 2 3 4 5")
    world.plan()
    assert world.store.state() == partition("4 5 3", "4", isr="3 4 5", epoch=4)
    assert list_reassignments(world.store.image()) == {}


def test_a_leader_that_stays_goes_on_in_a_new_epoch() -> None:
    world = World(partition("1 2 3", "1", epoch=3))
    world.reassign([1, 2, 4])
    world.join("1 2 3 4")
    world.plan()
    assert world.store.state() == partition("1 2 4", "1", isr="1 2 4", epoch=4)


def test_another_order_is_there_at_once() -> None:
    world = World(partition("1 2 3", "1", epoch=3))
    assert world.reassign([3, 1, 2]) is None
    assert world.store.state() == partition("3 1 2", "1", isr="1 2 3", epoch=3)


def test_fewer_replicas_are_there_at_once() -> None:
    world = World(partition("1 2 3", "1", epoch=3))
    assert world.reassign([2, 3]) is None
    assert world.store.state() == partition("2 3", "2", isr="2 3", epoch=4)


def test_the_same_replicas_need_no_write() -> None:
    world = World(partition("1 2 3", "1"))
    outcomes = reassign(world.controlling, {E0: [1, 2, 3]})
    assert outcomes == Outcomes([], {E0: None})


def test_another_target_before_the_first_is_reached() -> None:
    """Broker 4 is no longer a target: it is removed, however this ends."""
    world = World(partition("1 2 3", "1"))
    world.reassign([1, 2, 4])
    world.reassign([1, 2, 5])
    assert world.store.state() == partition("1 2 5 4 3", "1", isr="1 2 3", adding="5 4", removing="4 3")
    assert list_reassignments(world.store.image())[E0] == Reassignment((1, 2, 5, 4, 3), (5,), (4, 3))
    world.reassign(None)
    assert world.store.state().replicas == (1, 2, 3)


def test_back_to_the_first_replicas_is_there_at_once() -> None:
    world = World(partition("1 2 3", "1"))
    world.reassign([1, 2, 4])
    world.join("1 2 3 4")
    world.reassign([1, 2, 3])
    assert world.store.state() == partition("1 2 3", "1", isr="1 2 3", epoch=1)


def test_a_dead_leader_is_the_plan_s_business() -> None:
    world = World(partition("1 2 3", "1"))
    world.store.end_lease(LeaseId(1))
    world.reassign([2, 3, 4])
    assert world.store.state() == partition("2 3 4 1", "1", isr="1 2 3", adding="4", removing="1")
    world.plan()
    assert world.store.state().leader == 2


def test_cancelling() -> None:
    world = World(partition("1 2 3", "1", epoch=3))
    world.reassign([4, 5, 3])
    world.join("1 2 3 4")
    assert world.reassign(None) is None
    assert world.store.state() == partition("3 1 2", "1", isr="1 2 3", epoch=4)
    assert world.reassign(None) is ErrorCode.no_reassignment_in_progress


def test_cancelling_moves_the_leader_back() -> None:
    world = World(partition("4 1 2", "4", isr="4 1", adding="4", epoch=3))
    assert world.reassign(None) is None
    assert world.store.state() == partition("1 2", "1", isr="1", epoch=4)


def test_cancelling_is_refused_when_only_the_new_ones_have_everything() -> None:
    state = partition("4 1 2", "4", isr="4", adding="4", epoch=3)
    world = World(state)
    assert world.reassign(None) is ErrorCode.invalid_replica_assignment
    assert world.store.state() == state
    world = World(partition("4 1 2", "4", isr="4 1", adding="4"))
    world.store.end_lease(LeaseId(1))
    assert world.reassign(None) is ErrorCode.invalid_replica_assignment


@pytest.mark.parametrize(
    ("named", "target", "error"),
    [
        (E0, [], ErrorCode.invalid_replica_assignment),
        (E0, [1, 1], ErrorCode.invalid_replica_assignment),
        (E0, [1, 9], ErrorCode.invalid_replica_assignment),
        (TopicPartitionName("events", 7), [1], ErrorCode.unknown_topic_or_partition),
        (TopicPartitionName("others", 0), [1], ErrorCode.unknown_topic_or_partition),
        (TopicPartitionName("others", 0), None, ErrorCode.unknown_topic_or_partition),
        (E0, None, ErrorCode.no_reassignment_in_progress),
    ],
)
def test_reassignments_that_are_refused(named: TopicPartitionName, target: list[int] | None, error: ErrorCode) -> None:
    world = World(partition("1 2 3", "1"))
    assert world.reassign(target, named) is error


def test_machines_are_not_shared_unless_allowed() -> None:
    world = World(partition("1 2", "1"))
    world.store.add_broker(6, machine="machine-1")
    outcomes = reassign(world.controlling, {E0: [1, 6]})
    assert outcomes.refused[E0] is not None
    outcomes = reassign(world.controlling, {E0: [1, 6]}, allow_shared_machine=True)
    assert outcomes.refused[E0] is None


def test_the_factor_stays_if_that_is_asked() -> None:
    world = World(partition("1 2", "1"))
    outcomes = reassign(world.controlling, {E0: [1, 2, 3]}, allow_factor_change=False)
    refused = outcomes.refused[E0]
    assert refused is not None
    assert refused.error is ErrorCode.invalid_replication_factor


def test_one_refusal_does_not_stop_the_others() -> None:
    world = World(partition("1 2", "1"), partition("1 2", "1"))
    outcomes = reassign(world.controlling, {E0: [9], TopicPartitionName("events", 1): [2, 1]})
    assert len(outcomes.writes) == 1
    assert [refused is None for refused in outcomes.refused.values()] == [False, True]


def test_a_controller_that_is_deposed_meanwhile_reassigns_nothing() -> None:
    world = World(partition("1 2", "1"))
    (write,) = reassign(world.controlling, {E0: [2, 1]}).writes
    world.store.add_controller(2)
    assert isinstance(world.store.commit(write), Conflict)


def test_reassignments_of_given_partitions() -> None:
    world = World(partition("1 2 3", "1", adding="3", isr="1 2"), partition("1 2", "1"))
    asked = [E0, TopicPartitionName("events", 1), TopicPartitionName("others", 0)]
    assert list(list_reassignments(world.store.image(), asked)) == [E0]


# -- elections ------------------------------------------------------------------------------------------------------


def test_a_preferred_leader() -> None:
    world = World(partition("1 2 3", "2", epoch=3))
    assert world.elect() is None
    assert world.store.state() == partition("1 2 3", "1", epoch=4)
    assert world.elect() is ErrorCode.election_not_needed


def test_a_preferred_leader_that_is_not_in_sync() -> None:
    world = World(partition("1 2 3", "2", isr="2 3"))
    assert world.elect() is ErrorCode.preferred_leader_not_available


def test_an_unclean_election_whatever_the_topic_says() -> None:
    world = World(partition("1 2 3", "1", isr="1", epoch=3))
    assert world.elect(ElectionType.UNCLEAN) is ErrorCode.election_not_needed
    world.store.end_lease(LeaseId(1))
    world.plan()
    assert not world.store.state().has_leader
    assert world.elect(ElectionType.UNCLEAN) is None
    assert world.store.state() == partition("1 2 3", "2", isr="2", epoch=5)


def test_an_unclean_election_without_anybody() -> None:
    world = World(partition("7 8", isr="7"))
    assert world.elect(ElectionType.UNCLEAN) is ErrorCode.eligible_leaders_not_available


def test_of_all_partitions_those_without_need_are_not_mentioned() -> None:
    world = World(partition("1 2", "1"), partition("1 2", "2"), partition("1 2", "2", isr="2"))
    outcomes = elect_leaders(world.controlling, None, ElectionType.PREFERRED)
    assert {named.partition: refused and refused.error for named, refused in outcomes.refused.items()} == {
        1: None,
        2: ErrorCode.preferred_leader_not_available,
    }
    assert len(outcomes.writes) == 1
    for write in outcomes.writes:
        world.store.commit(write)
    assert world.store.state(PartitionKey(TOPIC, 1)).leader == 1


def test_an_unknown_partition() -> None:
    world = World(partition("1 2", "1"))
    assert world.elect(named=TopicPartitionName("events", 3)) is ErrorCode.unknown_topic_or_partition
