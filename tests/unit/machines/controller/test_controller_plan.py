"""The controller's writes: elections first, many in one write, each fenced (safety: controller-writes)."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.coordination.port import Committed, Conflict, HasVersion, LeaseId
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.plan import plan
from ottla.machines.controller.planner import Planner
from ottla.machines.controller.preferred_leaders import imbalanced
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import (
    ControllerEntry,
    FailedLogs,
    Member,
    PartitionKey,
    PartitionState,
    TopicCreation,
    Versioned,
)
from ottla.machines.controller.topic_requests import alter_topic_configs, delete_topic
from ottla.machines.controller.writes import Limits, Write
from ottla.protocol.model.ids import TopicId
from tests.support.controller_store import P0, TOPIC, Store, members, partition

BOOK = RuleBook()


def world(*states: PartitionState, **configs: str) -> tuple[Store, Versioned[ControllerEntry]]:
    """Three brokers. Keyword arguments are configs of the topic, with '_' for '.'."""
    store = Store()
    for broker_id in (1, 2, 3):
        store.add_broker(broker_id)
    store.add_topic(states, configs={name.replace("_", "."): value for name, value in configs.items()})
    return store, store.add_controller()


def carry_out(
    store: Store, me: Versioned[ControllerEntry], preferred: frozenset[PartitionKey] = frozenset()
) -> list[Write]:
    writes = plan(store.image(), me, BOOK, preferred=preferred)
    for write in writes:
        assert isinstance(store.commit(write), Committed), write
    assert plan(store.image(), me, BOOK, preferred=preferred) == []
    return writes


def test_nothing_is_written_while_nothing_is_due() -> None:
    store, me = world(partition("1 2 3", "1"), partition("2 3 1", "2"))
    assert plan(store.image(), me, BOOK) == []


def test_the_leaders_of_a_dead_broker_move_in_one_write() -> None:
    store, me = world(*[partition("1 2 3", "1")] * 3, partition("2 3 1", "2"))
    store.end_lease(LeaseId(1))
    first, second = carry_out(store, me)
    assert len(first.operations) == 3
    assert len(second.operations) == 1
    assert store.state() == partition("1 2 3", "2", isr="2 3", epoch=1)
    assert store.state(PartitionKey(TOPIC, 3)) == partition("2 3 1", "2", isr="2 3")


def test_each_write_has_the_controller_and_the_partitions_as_conditions() -> None:
    store, me = world(*[partition("1 2 3", "1")] * 3)
    store.end_lease(LeaseId(3))
    image = store.image()
    (write,) = plan(image, me, BOOK)
    expected = {HasVersion(keys.CONTROLLER, me.version), *image.standing(1)}
    expected |= {image.unchanged(keys.partition(PartitionKey(TOPIC, index))) for index in range(3)}
    assert set(write.conditions) == expected
    assert "3 partition(s)" in write.why


def test_a_deposed_controller_is_fenced() -> None:
    store, me = world(partition("1 2 3", "1"))
    store.end_lease(LeaseId(3))
    (write,) = plan(store.image(), me, BOOK)
    store.add_controller(2)
    assert isinstance(store.commit(write), Conflict)
    assert plan(store.image(), me, BOOK) == []


def test_a_leader_that_changed_its_isr_meanwhile_makes_it_fail() -> None:
    store, me = world(partition("1 2 3", "1"))
    store.end_lease(LeaseId(3))
    (write,) = plan(store.image(), me, BOOK)
    store.set_partition(partition("1 2 3", "1", isr="1 2"))
    assert isinstance(store.commit(write), Conflict)


@pytest.mark.parametrize("lost", ["the leader that is elected", "the leader that stays"])
def test_nobody_is_dropped_for_a_leader_that_has_just_come_back_empty(lost: str) -> None:
    """The image is slightly outdated: 2 is dead and has everything, 1 was healthy but is empty now."""
    store, me = world(partition("1 2", "2" if "elected" in lost else "1"), min_insync_replicas="1")
    store.end_lease(LeaseId(2))
    (write,) = plan(store.image(), me, BOOK)
    store.add_broker(1, epoch=2)
    assert isinstance(store.commit(write), Conflict)
    carry_out(store, me)
    assert store.state().isr == members("1 2")
    store.add_broker(2, epoch=2, kept=1)
    carry_out(store, me)
    assert store.state().leader_member == Member(2, 2)


def test_nor_for_one_whose_log_has_just_failed() -> None:
    store, me = world(partition("1 2", "2"), min_insync_replicas="1")
    store.end_lease(LeaseId(2))
    (write,) = plan(store.image(), me, BOOK)
    store.put(keys.failures(1), encoding.encode_failures(FailedLogs(1, all_disk=True)))
    assert isinstance(store.commit(write), Conflict)


def test_an_unclean_election_fails_if_one_who_has_everything_has_come_back() -> None:
    store, me = world(partition("1 2", "1", isr="1"), unclean_leader_election_enable="true")
    store.end_lease(LeaseId(1))
    (write,) = plan(store.image(), me, BOOK)
    store.add_broker(1, epoch=2, kept=1)
    assert isinstance(store.commit(write), Conflict)
    carry_out(store, me)
    assert store.state() == partition("1 2", "1:2", isr="1:2", epoch=1)


def test_elections_come_first() -> None:
    store, me = world(partition("3 2 1", "3"), partition("1 2 3", "1"))
    store.end_lease(LeaseId(3))
    first, second = carry_out(store, me)
    assert [operation.key for operation in first.operations] == [keys.partition(P0)]
    assert [operation.key for operation in second.operations] == [keys.partition(PartitionKey(TOPIC, 1))]


@pytest.mark.parametrize("operations_max", [4, 10, 128])
def test_writes_stay_within_the_limits(operations_max: int) -> None:
    states = [partition("1 2 3", "1"), partition("2 1 3", "2"), partition("3 1 2", "3")] * 50
    store, me = world(*states)
    store.end_lease(LeaseId(3))
    writes = plan(store.image(), me, BOOK, Limits(operations_max))
    assert sum(len(write.operations) for write in writes) == 150
    for write in writes:
        assert len(write.operations) <= operations_max
        assert len(write.conditions) <= operations_max
        assert isinstance(store.commit(write), Committed)
    assert plan(store.image(), me, BOOK) == []
    if operations_max == 128:
        assert len(writes) == 2


def test_writes_stay_within_the_limit_of_bytes() -> None:
    store, me = world(*[partition("1 2 3", "1")] * 20)
    store.end_lease(LeaseId(3))
    writes = plan(store.image(), me, BOOK, Limits(bytes_max=200))
    assert all(sum(len(getattr(put, "value", b"")) for put in write.operations) <= 200 for write in writes)
    assert sum(len(write.operations) for write in writes) == 20


def test_a_lowered_minimum_clears_the_eligible() -> None:
    store, me = world(partition("1 2 3", "1", isr="1", eligible="2"), min_insync_replicas="2")
    assert plan(store.image(), me, BOOK) == []
    write = alter_topic_configs(store.image(), TOPIC, {"min.insync.replicas": "1"})
    assert isinstance(write, Write)
    store.commit(write)
    carry_out(store, me)
    assert store.state() == partition("1 2 3", "1", isr="1")


# -- clean-up -------------------------------------------------------------------------------------------------------


def test_partitions_of_a_deleted_topic_are_removed() -> None:
    store, me = world(partition("1 2 3", "1"), partition("2 3 1", "2"))
    write = delete_topic(store.image(), TOPIC)
    assert isinstance(write, Write)
    store.commit(write)
    (cleaned,) = carry_out(store, me)
    assert len(cleaned.operations) == 2
    assert not [key for key in store.entries if key.startswith(("partitions/", "topics/", "names/"))]


def test_what_is_being_created_is_left_alone_until_its_creator_is_gone() -> None:
    store, me = world(partition("1 2 3", "1"))
    other = TopicId(UUID(int=0x99))
    store.put(keys.creating(other), encoding.encode_creating(TopicCreation("other", Member(2, 1))), LeaseId(2))
    store.set_partition(partition("3", "3"), PartitionKey(other, 0))
    assert plan(store.image(), me, BOOK) == []
    store.end_lease(LeaseId(2))
    carry_out(store, me)
    assert keys.partition(PartitionKey(other, 0)) not in store.entries


def test_nothing_is_elected_for_partitions_that_are_not_visible() -> None:
    store, me = world(partition("1 2 3", "1"))
    other = TopicId(UUID(int=0x99))
    store.put(keys.creating(other), encoding.encode_creating(TopicCreation("other", Member(2, 1))), LeaseId(2))
    store.set_partition(partition("7 8", "7"), PartitionKey(other, 0))
    assert plan(store.image(), me, BOOK) == []


# -- preferred leaders ----------------------------------------------------------------------------------------------


def test_preferred_leaders_only_when_asked() -> None:
    store, me = world(partition("1 2 3", "2"), partition("1 2 3", "2"))
    assert plan(store.image(), me, BOOK) == []
    carry_out(store, me, preferred=frozenset({P0}))
    assert (store.state().leader, store.state(PartitionKey(TOPIC, 1)).leader) == (1, 2)


def test_an_imbalance_above_the_threshold() -> None:
    states = [partition("1 2 3", "1")] * 9 + [partition("1 2 3", "2")]
    store, _ = world(*states)
    assert imbalanced(store.image(), 10) == set()
    assert imbalanced(store.image(), 9) == {PartitionKey(TOPIC, 9)}
    store.end_lease(LeaseId(1))
    assert imbalanced(store.image(), 0) == set()


# -- planning as the image changes ----------------------------------------------------------------------------------


def test_a_planner_looks_again_at_what_changes_concern() -> None:
    store, me = world(partition("1 2 3", "1"), partition("2 3 1", "2"), min_insync_replicas="1")
    image, planner = store.image(), Planner(BOOK)
    assert planner.plan(image, me) == []
    seen = len(store.history)
    store.end_lease(LeaseId(2))
    planner.observe(image, follow(image, store, seen))
    writes = planner.plan(image, me)
    assert writes == plan(store.image(), me, BOOK)
    assert len(writes) == 2
    assert planner.plan(image, me) == writes, "what is due stays due until its change is seen"
    seen = len(store.history)
    for write in writes:
        store.commit(write)
    planner.observe(image, follow(image, store, seen))
    assert planner.plan(image, me) == []


def test_a_planner_does_a_little_at_a_time_elections_first() -> None:
    states = [partition("1 2 3", "1"), partition("2 1 3", "2"), partition("1 2 3", "1"), partition("3 2 1", "3")]
    store, me = world(*states, min_insync_replicas="1")
    image, planner, limits = store.image(), Planner(BOOK), Limits(changes_max=2)
    seen = len(store.history)
    store.end_lease(LeaseId(1))
    planner.observe(image, follow(image, store, seen))
    rounds = []
    while writes := planner.plan(image, me, limits):
        seen = len(store.history)
        for write in writes:
            assert isinstance(store.commit(write), Committed)
        rounds.append([operation.key[-1] for write in writes for operation in write.operations])
        planner.observe(image, follow(image, store, seen))
    assert rounds == [["0", "2"], ["1", "3"]]


def test_a_planner_that_starts_over_looks_at_everything() -> None:
    store, me = world(partition("1 2 3", "1"))
    planner = Planner(BOOK)
    planner.plan(store.image(), me)
    store.end_lease(LeaseId(3))
    assert planner.plan(store.image(), me) == []
    planner.start_over()
    assert len(planner.plan(store.image(), me)) == 1


def follow(image: ClusterImage, store: Store, seen: int) -> ImageChanges:
    return image.apply(change for batch in store.history[seen:] for change in batch.changes)
