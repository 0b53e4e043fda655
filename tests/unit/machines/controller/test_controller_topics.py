"""Creating, growing, altering and deleting topics: what is written, in which order, and what makes it fail."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.coordination.port import Committed, Conflict, LeaseId, Revision
from ottla.machines.controller import keys
from ottla.machines.controller.broker_requests import start_draining
from ottla.machines.controller.plan import plan
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import Member, PartitionKey, TopicState
from ottla.machines.controller.topic_requests import (
    Creation,
    alter_broker_configs,
    alter_topic_configs,
    create_partitions,
    create_topic,
    delete_topic,
    unfinished_creations,
)
from ottla.machines.controller.writes import Limits, Write
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId
from tests.support.controller_store import TOPIC, Store, members, partition

ME, LEASE = Member(1, 1), LeaseId(1)
SMALL = Limits(operations_max=16)


def brokers(count: int = 3) -> Store:
    store = Store()
    for broker_id in range(1, count + 1):
        store.add_broker(broker_id)
    return store


def creation(
    store: Store, count: int, name: str = "events", topic_id: TopicId = TOPIC, limits: Limits | None = None
) -> Creation:
    topic = TopicState(topic_id, name, count, {"a": "b"}, 5)
    found = create_topic(store.image(), topic, [(1, 2, 3)] * count, ME, LEASE, limits)
    assert isinstance(found, Creation)
    return found


def growth(store: Store, added: int, limits: Limits | None = None) -> Creation:
    found = create_partitions(store.image(), TOPIC, [(2, 1)] * added, ME, LEASE, limits)
    assert isinstance(found, Creation)
    return found


def begin(store: Store, found: Creation) -> Revision:
    outcome = store.commit(found.first)
    assert isinstance(outcome, Committed)
    return outcome.revision


def carry_out(store: Store, found: Creation) -> None:
    for write in found.rest(begin(store, found)):
        assert isinstance(store.commit(write), Committed)


def clean_up(store: Store) -> None:
    for write in plan(store.image(), store.add_controller(), RuleBook()):
        assert isinstance(store.commit(write), Committed)


# -- create ---------------------------------------------------------------------------------------------------------


def test_a_small_topic_is_created_in_one_write() -> None:
    store = brokers()
    found = creation(store, 2)
    revision = begin(store, found)
    assert found.rest(revision) == []
    assert found.abandon(revision) is None
    image = store.image()
    assert image.topic_named("events") == found.topic
    assert [each.value for each in image.partitions_of(TOPIC).values()] == [partition("1 2 3", "1")] * 2


def test_a_large_topic_is_not_seen_before_it_is_whole() -> None:
    store = brokers()
    found = creation(store, 40, limits=SMALL)
    rest = found.rest(begin(store, found))
    assert len(rest) > 3
    for write in rest:
        image = store.image()
        assert image.topic(TOPIC) is None
        assert not list(image.partitions())
        assert not plan(image, store.add_controller(), RuleBook()), "what is being created is not left over"
        assert max(len(write.operations), len(write.conditions)) <= SMALL.operations_max
        assert isinstance(store.commit(write), Committed)
    image = store.image()
    assert len(image.partitions_of(TOPIC)) == 40
    assert not image.creating()
    assert not list(image.left_over())


def test_of_two_creators_of_one_name_one_succeeds_and_the_other_leaves_nothing() -> None:
    store = brokers()
    first, second = creation(store, 40, limits=SMALL), creation(store, 40, topic_id=TopicId(UUID(int=9)), limits=SMALL)
    revision = begin(store, second)
    carry_out(store, first)
    outcomes = [store.commit(write) for write in second.rest(revision)]
    assert isinstance(outcomes[-1], Conflict)
    assert all(isinstance(outcome, Committed) for outcome in outcomes[:-1])
    abandon = second.abandon(revision)
    assert abandon is not None
    store.commit(abandon)
    clean_up(store)
    assert len([key for key in store.entries if key.startswith("partitions/")]) == 40
    refused = create_topic(store.image(), second.topic, [(1,)] * 40, ME, LEASE)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.topic_already_exists


def test_a_creator_that_dies_leaves_nothing() -> None:
    """Its writes that are still in flight come too late."""
    store = brokers()
    found = creation(store, 40, limits=SMALL)
    rest = found.rest(begin(store, found))
    store.commit(rest[0])
    store.end_lease(LEASE)
    clean_up(store)
    assert not [key for key in store.entries if key.startswith(("partitions/", "creating/", "topics/", "names/"))]
    assert all(isinstance(store.commit(write), Conflict) for write in rest)


def test_a_replica_that_starts_anew_meanwhile_makes_it_fail() -> None:
    """It would be in sync as an incarnation that no longer exists."""
    store = brokers()
    found = creation(store, 1)
    store.add_broker(2, epoch=2)
    assert isinstance(store.commit(found.first), Conflict)
    carry_out(store, creation(store, 1))
    assert store.state().isr == members("1 2:2 3")


def test_who_is_not_there_is_not_in_sync() -> None:
    store = brokers(3)
    draining = start_draining(store.image(), 2)
    assert isinstance(draining, Write)
    store.commit(draining)
    topic = TopicState(TOPIC, "events", 1, {}, 0)
    found = create_topic(store.image(), topic, [(2, 4, 3)], ME, LEASE)
    assert isinstance(found, Creation)
    carry_out(store, found)
    assert store.state() == partition("2 4 3", "3", isr="3")
    refused = create_topic(store.image(), TopicState(TOPIC, "others", 1, {}, 0), [(2, 4)], ME, LEASE)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.invalid_replica_assignment


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("events.all", ErrorCode.topic_already_exists),
        ("events_all", ErrorCode.invalid_topic_exception),
        ("", ErrorCode.invalid_topic_exception),
        (".", ErrorCode.invalid_topic_exception),
        ("..", ErrorCode.invalid_topic_exception),
        ("a/b", ErrorCode.invalid_topic_exception),
        ("ä", ErrorCode.invalid_topic_exception),
        ("x" * 250, ErrorCode.invalid_topic_exception),
    ],
)
def test_names_that_are_refused(name: str, error: ErrorCode) -> None:
    store = brokers()
    carry_out(store, creation(store, 1, "events.all"))
    topic = TopicState(TopicId(UUID(int=9)), name, 1, {}, 0)
    refused = create_topic(store.image(), topic, [(1,)], ME, LEASE)
    assert isinstance(refused, Refused)
    assert refused.error is error


def test_a_name_is_free_again_after_its_topic_is_deleted() -> None:
    store = brokers()
    carry_out(store, creation(store, 1, "events.all"))
    deleted = delete_topic(store.image(), TOPIC)
    assert isinstance(deleted, Write)
    store.commit(deleted)
    carry_out(store, creation(store, 1, "events_all", TopicId(UUID(int=9))))
    carry_out(store, creation(store, 1, "x" * 249, TopicId(UUID(int=10))))


def test_a_creator_finds_its_unfinished_creations() -> None:
    store = brokers()
    begin(store, creation(store, 40, limits=SMALL))
    assert unfinished_creations(store.image(), ME, {TOPIC}) == []
    assert unfinished_creations(store.image(), Member(1, 2), ()) == []
    (write,) = unfinished_creations(store.image(), ME, ())
    store.commit(write)
    assert not store.image().creating()


def test_after_an_unknown_outcome_the_conflict_shows_whether_it_was_applied() -> None:
    store = brokers()
    found = creation(store, 2)
    begin(store, found)
    again = store.commit(found.first)
    assert isinstance(again, Conflict)
    assert found.first.was_applied(again.entries)
    other = creation(brokers(), 2, topic_id=TopicId(UUID(int=9)))
    refused = store.commit(other.first)
    assert isinstance(refused, Conflict)
    assert not other.first.was_applied(refused.entries)


# -- grow -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [SMALL, Limits()])
def test_partitions_are_added(limits: Limits) -> None:
    store = brokers()
    carry_out(store, creation(store, 2))
    found = growth(store, 30, limits)
    revision = begin(store, found)
    rest = found.rest(revision)
    assert bool(rest) == (limits is SMALL)
    for write in rest:
        assert len(store.image().partitions_of(TOPIC)) == 2
        assert isinstance(store.commit(write), Committed)
    image = store.image()
    assert len(image.partitions_of(TOPIC)) == 32
    assert store.state(PartitionKey(TOPIC, 31)) == partition("2 1", "2")
    topic = image.topic(TOPIC)
    assert topic is not None
    assert (topic.partition_count, topic.configs) == (32, {"a": "b"})


def test_of_two_that_add_partitions_one_succeeds() -> None:
    store = brokers()
    carry_out(store, creation(store, 2))
    slow, quick = growth(store, 30, SMALL), growth(store, 1)
    revision = begin(store, slow)
    carry_out(store, quick)
    outcomes = [store.commit(write) for write in slow.rest(revision)]
    assert isinstance(outcomes[0], Conflict)
    assert isinstance(outcomes[-1], Conflict)
    assert len(store.image().partitions_of(TOPIC)) == 3


def test_partitions_that_are_left_over_are_not_taken_for_new_ones() -> None:
    store = brokers()
    carry_out(store, creation(store, 2))
    given_up = growth(store, 30, SMALL)
    store.commit(given_up.rest(begin(store, given_up))[0])
    store.end_lease(LEASE)
    store.add_broker(1)
    assert isinstance(store.commit(growth(store, 1).first), Conflict)
    clean_up(store)
    carry_out(store, growth(store, 1))


def test_a_topic_that_is_deleted_meanwhile_gets_no_partitions() -> None:
    store = brokers()
    carry_out(store, creation(store, 2))
    found = growth(store, 30, SMALL)
    rest = found.rest(begin(store, found))
    store.commit(rest[0])
    deleted = delete_topic(store.image(), TOPIC)
    assert isinstance(deleted, Write)
    store.commit(deleted)
    assert all(isinstance(store.commit(write), Conflict) for write in rest[1:])
    clean_up(store)
    assert not [key for key in store.entries if key.startswith(("partitions/", "creating/"))]


def test_growth_that_is_refused() -> None:
    store = brokers()
    carry_out(store, creation(store, 2))
    refused = create_partitions(store.image(), TOPIC, [], ME, LEASE)
    assert isinstance(refused, Refused)
    assert refused == Refused(ErrorCode.invalid_partitions, "Topic already has 2 partition(s).")
    unknown = create_partitions(store.image(), TopicId(UUID(int=9)), [(1,)], ME, LEASE)
    assert isinstance(unknown, Refused)
    assert unknown.error is ErrorCode.unknown_topic_or_partition


# -- alter, delete --------------------------------------------------------------------------------------------------


def test_configs_of_a_topic() -> None:
    store = brokers()
    carry_out(store, creation(store, 1))
    image = store.image()
    first, second = (alter_topic_configs(image, TOPIC, {"a": value}) for value in ("x", "y"))
    assert isinstance(first, Write)
    assert isinstance(second, Write)
    assert isinstance(store.commit(first), Committed)
    assert isinstance(store.commit(second), Conflict)
    topic = store.image().topic(TOPIC)
    assert topic is not None
    assert topic.configs == {"a": "x"}
    assert alter_topic_configs(store.image(), TOPIC, {"a": "x"}) is None
    assert isinstance(alter_topic_configs(store.image(), TopicId(UUID(int=9)), {}), Refused)


@pytest.mark.parametrize("name", ["default", "3"])
def test_dynamic_configs_of_brokers(name: str) -> None:
    store = Store()
    image = store.image()
    first, second = (alter_broker_configs(image, name, {"a": value}) for value in ("x", "y"))
    assert isinstance(first, Write)
    assert isinstance(second, Write)
    assert isinstance(store.commit(first), Committed)
    assert isinstance(store.commit(second), Conflict)
    assert store.image().configs(name) == {"a": "x"}
    assert alter_broker_configs(store.image(), name, {"a": "x"}) is None
    cleared = alter_broker_configs(store.image(), name, {})
    assert isinstance(cleared, Write)
    store.commit(cleared)
    assert keys.configs(name) not in store.entries


def test_a_topic_is_deleted_once() -> None:
    store = brokers()
    carry_out(store, creation(store, 1))
    image = store.image()
    first, second = delete_topic(image, TOPIC), delete_topic(image, TOPIC)
    assert isinstance(first, Write)
    assert isinstance(second, Write)
    assert isinstance(store.commit(first), Committed)
    assert isinstance(store.commit(second), Conflict)
    assert store.image().topic_named("events") is None
    assert not list(store.image().partitions())
    refused = delete_topic(store.image(), TOPIC)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.unknown_topic_id
