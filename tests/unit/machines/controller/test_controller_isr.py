"""A leader's changes of its ISR: what it writes, and what makes the write fail.

(safety: eligible-replicas, isr-changes)
"""

from __future__ import annotations

import pytest

from ottla.coordination.port import Committed, Conflict, LeaseId
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.broker_requests import start_draining
from ottla.machines.controller.isr import isr_change
from ottla.machines.controller.rules import TopicRules
from ottla.machines.controller.state import FailedLogs, Member, PartitionState
from ottla.machines.controller.writes import Write
from ottla.protocol.model.errors import ErrorCode, Refused
from tests.support.controller_store import P0, Store, members, partition

LEADER = Member(1, 1)


def world(state: PartitionState) -> Store:
    store = Store()
    for broker_id in (1, 2, 3):
        store.add_broker(broker_id)
    store.add_topic([state])
    return store


def change(store: Store, isr: str, rules: TopicRules | None = None, leader: Member = LEADER) -> Write:
    write = isr_change(store.image(), rules or TopicRules(), P0, leader, members(isr))
    assert isinstance(write, Write)
    return write


def refusal(store: Store, isr: str, leader: Member = LEADER) -> ErrorCode:
    refused = isr_change(store.image(), TopicRules(), P0, leader, members(isr))
    assert isinstance(refused, Refused)
    return refused.error


def test_a_shrink() -> None:
    store = world(partition("1 2 3", "1"))
    assert isinstance(store.commit(change(store, "1 3")), Committed)
    assert store.state() == partition("1 2 3", "1", isr="1 3")


def test_below_the_minimum_those_who_leave_are_eligible() -> None:
    store = world(partition("1 2 3", "1"))
    store.commit(change(store, "1"))
    assert store.state() == partition("1 2 3", "1", isr="1", eligible="2 3")


def test_an_expansion_above_the_minimum_clears_the_eligible() -> None:
    store = world(partition("1 2 3", "1", isr="1", eligible="2 3"))
    store.commit(change(store, "1 2", TopicRules(min_insync_replicas=3)))
    assert store.state() == partition("1 2 3", "1", isr="1 2", eligible="3")
    store.commit(change(store, "1 2 3", TopicRules(min_insync_replicas=3)))
    assert store.state() == partition("1 2 3", "1")


def test_a_member_that_is_in_the_isr_stays_the_incarnation_that_it_was() -> None:
    store = world(partition("1 2 3", "1", isr="1 2"))
    store.add_broker(2, epoch=2, kept=1)
    store.commit(change(store, "1 2 3"))
    assert store.state().isr == members("1 2 3")


def test_the_same_set_needs_no_write() -> None:
    store = world(partition("1 2 3", "1", isr="1 2"))
    assert isr_change(store.image(), TopicRules(), P0, LEADER, members("2 1")) is None


# -- conditions -----------------------------------------------------------------------------------------------------


def test_a_change_of_the_partition_makes_it_fail() -> None:
    store = world(partition("1 2 3", "1"))
    write = change(store, "1 3")
    store.set_partition(partition("1 2 3", "2", epoch=1))
    assert isinstance(store.commit(write), Conflict)


@pytest.mark.parametrize("broker_id", [1, 2])
def test_a_new_incarnation_of_the_leader_or_of_one_that_joins_makes_it_fail(broker_id: int) -> None:
    """A leader that was paused while its broker restarted empty must not drop replicas that have everything."""
    store = world(partition("1 2 3", "1", isr="1 3"))
    write = change(store, "1 2")
    store.add_broker(broker_id, epoch=2)
    assert isinstance(store.commit(write), Conflict)
    assert store.state().isr == members("1 3")


def test_a_log_that_failed_meanwhile_makes_it_fail() -> None:
    store = world(partition("1 2 3", "1", isr="1 3"))
    write = change(store, "1 2 3")
    store.put(keys.failures(2), encoding.encode_failures(FailedLogs(1, all_disk=True)))
    assert isinstance(store.commit(write), Conflict)


def test_what_others_do_meanwhile_does_not() -> None:
    store = world(partition("1 2 3", "1", isr="1 3"))
    write = change(store, "1 2 3")
    store.add_broker(3, epoch=2, kept=1)
    assert isinstance(store.commit(write), Committed)


# -- errors ---------------------------------------------------------------------------------------------------------


def test_only_the_leader_of_this_epoch_changes_the_isr() -> None:
    store = world(partition("1 2 3", "1"))
    assert refusal(store, "2 3", Member(2, 1)) is ErrorCode.not_leader_or_follower
    assert refusal(store, "1:2 3", Member(1, 2)) is ErrorCode.not_leader_or_follower
    store.end_lease(LeaseId(1))
    assert refusal(store, "1 3") is ErrorCode.not_leader_or_follower
    store.add_broker(1, epoch=2, kept=1)
    assert refusal(store, "1 3") is ErrorCode.not_leader_or_follower


def test_a_leader_that_lost_its_log_drops_nobody() -> None:
    store = world(partition("1 2 3", "1"))
    store.put(keys.failures(1), encoding.encode_failures(FailedLogs(1, partitions=frozenset({P0}))))
    assert refusal(store, "1") is ErrorCode.not_leader_or_follower


def test_an_isr_is_the_leader_and_other_replicas() -> None:
    store = world(partition("1 2", "1"))
    assert refusal(store, "2") is ErrorCode.invalid_request
    assert refusal(store, "1 3") is ErrorCode.invalid_request
    assert refusal(store, "1 2 2:2") is ErrorCode.invalid_request


def test_who_joins_is_registered_as_the_leader_knows_it() -> None:
    store = world(partition("1 2 3", "1", isr="1"))
    assert refusal(store, "1 2:2") is ErrorCode.ineligible_replica
    store.add_broker(2, epoch=2)
    assert refusal(store, "1 2:1") is ErrorCode.ineligible_replica
    store.commit(change(store, "1 2:2"))
    assert store.state().isr == members("1 2:2")


def test_nobody_joins_with_a_failed_log_or_while_it_drains() -> None:
    store = world(partition("1 2 3", "1", isr="1"))
    store.put(keys.failures(2), encoding.encode_failures(FailedLogs(1, partitions=frozenset({P0}))))
    assert refusal(store, "1 2") is ErrorCode.ineligible_replica
    draining = start_draining(store.image(), 3)
    assert isinstance(draining, Write)
    store.commit(draining)
    assert refusal(store, "1 3") is ErrorCode.ineligible_replica


def test_a_partition_that_is_gone() -> None:
    store = Store()
    store.add_broker(1)
    assert refusal(store, "1") is ErrorCode.unknown_topic_or_partition
