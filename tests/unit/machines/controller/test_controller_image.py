"""The image of a cluster: what is read from the store, what a change touches, what is not visible."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from ottla.coordination.port import Change, Delete, Entry, HasVersion, IsAbsent, LeaseId, Put, Revision
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.image_differences import differences, partitions_concerned
from ottla.machines.controller.state import (
    BrokerState,
    ControllerEntry,
    FailedLogs,
    Incarnation,
    Member,
    PartitionKey,
    Registration,
    RetainedSince,
    TopicCreation,
    TopicState,
)
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.ids import TopicId
from tests.support.controller_store import P0, TOPIC, Store, partition

OTHER = TopicId(UUID(int=0x71))


def entry(value: bytes, key: str = "some/key") -> Entry:
    return Entry(key, value, Revision(7))


# -- values ---------------------------------------------------------------------------------------------------------


def test_values_come_back_as_they_were_written() -> None:
    registration = Registration(3, 9, "h", 9092, "m", RetainedSince(1, 2, 9), "r", BrokerState.DRAINING)
    assert encoding.decode_registration(entry(encoding.encode_registration(registration)), 3) == registration
    incarnation = Incarnation(9, "directory", "boot", RetainedSince(1, 2, 9))
    assert encoding.decode_incarnation(entry(encoding.encode_incarnation(incarnation))) == incarnation
    topic = TopicState(TOPIC, "events", 3, {"retention.ms": "1"}, 123)
    assert encoding.decode_topic(entry(encoding.encode_topic(topic)), TOPIC) == topic
    controller = ControllerEntry(1, 2)
    assert encoding.decode_controller(entry(encoding.encode_controller(controller))) == controller
    creating = TopicCreation("events", Member(1, 2))
    assert encoding.decode_creating(entry(encoding.encode_creating(creating))) == creating
    failed = FailedLogs(4, True, frozenset({P0, PartitionKey(OTHER, 5), PartitionKey(OTHER, 1)}))
    assert encoding.decode_failures(entry(encoding.encode_failures(failed))) == failed
    assert encoding.decode_name(entry(encoding.encode_name(TOPIC))) == TOPIC
    assert encoding.decode_configs(entry(encoding.encode_configs({"a": "b"}))) == {"a": "b"}


@pytest.mark.parametrize(
    "state",
    [
        partition("1 2 3", "1:4", epoch=8),
        partition("1 2 3", isr="1:4", eligible="2:3 3"),
        partition("4 1 2 3", "1", isr="1 2 3", adding="4", removing="3"),
        partition("1 2", "1:4", epoch=8, anew_in_epoch=7),
    ],
)
def test_a_partition_comes_back_as_it_was_written(state: object) -> None:
    assert isinstance(state, type(partition("1")))
    assert encoding.decode_partition(entry(encoding.encode_partition(state))) == state


def test_values_are_compact_and_sorted() -> None:
    assert encoding.encode_partition(partition("1 2", "1:3", isr="1:3", eligible="2")) == (
        b'{"eligible":[[2,1]],"format":1,"isr":[[1,3]],"leader":[1,3],"leader_epoch":0,"replicas":[1,2]}'
    )


def test_fields_of_a_later_version_are_ignored() -> None:
    state = partition("1 2", "1")
    fields = json.loads(encoding.encode_partition(state)) | {"mood": ["good"]}
    assert encoding.decode_partition(entry(json.dumps(fields).encode())) == state


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"format":2,"replicas":[1],"isr":[[1,1]],"leader_epoch":0}',
        b'{"format":1,"isr":[[1,1]],"leader_epoch":0}',
        b'{"format":1,"replicas":[],"isr":[[1,1]],"leader_epoch":0}',
        b'{"format":1,"replicas":[1],"isr":[],"leader_epoch":0}',
        b'{"format":1,"replicas":[1],"isr":[1],"leader_epoch":0}',
        b'{"format":1,"replicas":[1],"isr":[[1,true]],"leader_epoch":0}',
        b'{"format":1,"replicas":["1"],"isr":[[1,1]],"leader_epoch":0}',
        b'{"format":1,"replicas":[1],"isr":[[1,1]],"leader_epoch":-1}',
        b'{"format":1,"replicas":[1],"isr":[[1,1]],"leader_epoch":0,"leader":1}',
    ],
)
def test_a_partition_that_cannot_be_read_is_named(value: bytes) -> None:
    store = Store()
    store.add_topic([partition("1", "1"), partition("2", "2")])
    store.put(keys.partition(P0), value)
    image = store.image()
    (problem,) = image.unreadable()
    assert problem.key == keys.partition(P0)
    assert problem.key in str(problem)
    assert image.partition(P0) is None
    assert image.partition(PartitionKey(TOPIC, 1)) is not None


@pytest.mark.parametrize(
    "key", ["brokers/x", "brokers/01", "topics/1", "partitions/1/2", f"partitions/{TOPIC}", f"partitions/{TOPIC}/-1"]
)
def test_a_key_that_cannot_be_read_is_named(key: str) -> None:
    image = ClusterImage()
    touched = image.apply([Change(key, entry(b"{}", key))])
    assert [problem.key for problem in touched.unreadable] == [key]
    assert not list(image.partitions())
    image.apply([Change(key, None)])
    assert not image.unreadable()


def test_keys_of_others_are_not_our_business() -> None:
    image = ClusterImage()
    assert image.apply([Change("ids/producers", entry(b"17", "ids/producers"))]) == ImageChanges()
    assert not image.unreadable()


# -- look-ups -------------------------------------------------------------------------------------------------------


def test_look_ups() -> None:
    store = Store()
    registration = store.add_broker(1)
    topic = store.add_topic([partition("1 2", "1"), partition("2 1", "2")])
    controller = store.add_controller()
    store.put(keys.configs("default"), encoding.encode_configs({"log.retention.ms": "5"}))
    image = store.image()
    assert image.registration(1) == registration
    assert image.registration(2) is None
    assert image.topic(TOPIC) == image.topic_named("events") == topic
    assert image.topic_named("event") is None
    assert image.controller == controller
    assert image.configs("default") == {"log.retention.ms": "5"}
    assert image.configs("1") == {}
    found = image.partition(P0)
    assert found is not None
    assert found.value == partition("1 2", "1")
    assert found.version == store.entries[keys.partition(P0)].version
    assert image.partition(PartitionKey(TOPIC, 2)) is None
    assert list(image.partitions_of(TOPIC)) == [0, 1]
    assert set(image.led_by(1)) == {P0}
    assert set(image.hosted_by(1)) == {P0, PartitionKey(TOPIC, 1)}
    assert (image.leader_count(2), image.replica_count(2)) == (1, 2)
    assert list(image.names_like("events")) == ["events"]


def test_conditions_say_what_the_image_shows() -> None:
    store = Store()
    store.add_broker(1)
    store.put(keys.failures(2), b"not readable")
    image = store.image()
    at_1, at_2 = store.entries[keys.broker(1)].version, store.entries[keys.failures(2)].version
    assert image.standing(1) == (HasVersion("brokers/1", at_1), IsAbsent("failures/1"))
    assert image.standing(2) == (IsAbsent("brokers/2"), HasVersion("failures/2", at_2))
    assert image.unchanged(keys.CONTROLLER) == IsAbsent("controller")


def test_the_indexes_follow_the_changes() -> None:
    store = Store()
    store.add_topic([partition("1 2", "1")])
    image = store.image()
    store.set_partition(partition("3 2", "3", adding="3"))
    image.apply(store.history[-1].changes)
    assert (list(image.led_by(1)), list(image.hosted_by(1))) == ([], [])
    assert (list(image.led_by(3)), list(image.hosted_by(2)), list(image.reassigning())) == ([P0], [P0], [P0])
    store.set_partition(partition("3 2"))
    image.apply(store.history[-1].changes)
    assert (list(image.led_by(3)), list(image.led_by(-1)), list(image.reassigning())) == ([], [P0], [])
    store.change([Delete(keys.partition(P0))])
    image.apply(store.history[-1].changes)
    assert not any(image.leader_count(broker) + image.replica_count(broker) for broker in (-1, 1, 2, 3))


def test_partitions_without_their_topic_are_not_visible() -> None:
    store = Store()
    store.set_partition(partition("1 2", "1"))
    image = store.image()
    assert image.partition(P0) is None
    assert not list(image.partitions())
    assert not list(image.led_by(1))
    topic = TopicState(TOPIC, "events", 1, {}, 0)
    store.put(keys.topic(TOPIC), encoding.encode_topic(topic))
    touched = image.apply(store.history[-1].changes)
    assert touched.partitions == {P0}
    assert touched.topics == {TOPIC}
    assert image.partition(P0) is not None
    store.change([Delete(keys.topic(TOPIC))])
    assert image.apply(store.history[-1].changes).partitions == {P0}
    assert image.partition(P0) is None


def test_partitions_beyond_the_count_are_not_visible() -> None:
    store = Store()
    topic = store.add_topic([partition("1", "1")])
    second = PartitionKey(TOPIC, 1)
    store.set_partition(partition("1", "1"), second)
    image = store.image()
    assert image.partition(second) is None
    assert [key for key, _ in image.left_over()] == [second]
    grown = TopicState(TOPIC, topic.name, 2, topic.configs, 0)
    store.put(keys.topic(TOPIC), encoding.encode_topic(grown))
    assert image.apply(store.history[-1].changes).partitions == {second}
    assert image.partition(second) is not None
    assert not list(image.left_over())


def test_what_is_being_created_is_not_left_over() -> None:
    store = Store()
    store.put(keys.creating(TOPIC), encoding.encode_creating(TopicCreation("events", Member(1, 1))), LeaseId(5))
    store.set_partition(partition("1", "1"))
    image = store.image()
    assert not list(image.left_over())
    store.end_lease(LeaseId(5))
    image.apply(store.history[-1].changes)
    assert [key for key, _ in image.left_over()] == [P0]


@pytest.mark.parametrize("key", [keys.topic(TOPIC), keys.creating(TOPIC)])
def test_what_hangs_on_an_unreadable_entry_is_not_left_over(key: str) -> None:
    store = Store()
    store.put(key, b'{"format":99}')
    store.set_partition(partition("1", "1"))
    image = store.image()
    assert not list(image.left_over())
    assert not image.is_obsolete(P0, 1)
    store.change([Delete(key)])
    image.apply(store.history[-1].changes)
    assert [found for found, _ in image.left_over()] == [P0]
    assert image.is_obsolete(P0, 1)


def test_a_log_is_obsolete_when_its_replicas_are_elsewhere() -> None:
    store = Store()
    store.add_topic([partition("1 2", "1")])
    assert not store.image().is_obsolete(P0, 2)
    assert store.image().is_obsolete(P0, 3)
    store.put(keys.partition(P0), b"not readable")
    assert not store.image().is_obsolete(P0, 3)


# -- failures -------------------------------------------------------------------------------------------------------


def test_failures_count_for_the_incarnation_that_they_name() -> None:
    store = Store()
    store.add_broker(1, epoch=4)
    store.put(keys.failures(1), encoding.encode_failures(FailedLogs(4, partitions=frozenset({P0}))))
    assert store.image().has_failed(1, P0, Durability.MEMORY)
    assert not store.image().has_failed(1, PartitionKey(TOPIC, 1), Durability.MEMORY)
    store.add_broker(1, epoch=5)
    assert not store.image().has_failed(1, P0, Durability.MEMORY)


def test_all_disk_logs_may_have_failed() -> None:
    store = Store()
    store.add_broker(1)
    store.put(keys.failures(1), encoding.encode_failures(FailedLogs(1, all_disk=True)))
    image = store.image()
    assert image.has_failed(1, P0, Durability.DISK)
    assert not image.has_failed(1, P0, Durability.CACHE)
    assert not image.has_failed(2, P0, Durability.DISK)


def test_failures_that_cannot_be_read_may_be_of_any_log() -> None:
    store = Store()
    store.add_broker(1)
    store.put(keys.failures(1), b"?")
    assert store.image().has_failed(1, P0, Durability.MEMORY)


# -- what changed ---------------------------------------------------------------------------------------------------


def test_what_a_batch_touches() -> None:
    store = Store()
    store.add_topic([partition("1 2", "1"), partition("2 3", "2")])
    image = store.image()
    store.change(
        [
            Put(keys.broker(1), b"?"),
            Put(keys.failures(4), b"?"),
            Put(keys.configs("1"), encoding.encode_configs({})),
            Put(keys.CONTROLLER, encoding.encode_controller(ControllerEntry(1, 1))),
            Put(keys.partition(PartitionKey(TOPIC, 1)), encoding.encode_partition(partition("2 3", "3"))),
        ]
    )
    touched = image.apply(store.history[-1].changes)
    assert touched.brokers == {1, 4}
    assert touched.configs == {"1"}
    assert touched.controller
    assert touched.partitions == {PartitionKey(TOPIC, 1)}
    assert len(touched.unreadable) == 2
    assert partitions_concerned(image, touched) == {P0, PartitionKey(TOPIC, 1)}


def test_whom_a_change_concerns() -> None:
    store = Store()
    store.add_topic([partition("1 2", "1"), partition("2 3", "2")])
    image = store.image()
    second = PartitionKey(TOPIC, 1)
    assert partitions_concerned(image, ImageChanges(brokers={3})) == {second}
    assert partitions_concerned(image, ImageChanges(brokers={2})) == {P0, second}
    assert partitions_concerned(image, ImageChanges(topics={TOPIC})) == {P0, second}
    assert partitions_concerned(image, ImageChanges(configs={"default"})) == {P0, second}
    assert partitions_concerned(image, ImageChanges(configs={"7"}, controller=True)) == set()


def test_differences_after_a_resync_are_what_the_watch_would_have_said() -> None:
    store = Store()
    store.add_broker(1)
    store.add_broker(2)
    store.add_topic([partition("1 2", "1"), partition("2 1", "2")])
    store.add_topic([partition("1", "1")], topic_id=OTHER, name="other")
    old, kept_up = store.image(), store.image()
    seen = len(store.history)
    store.end_lease(LeaseId(2))
    store.set_partition(partition("1 2", "1", isr="1"))
    store.change([Delete(keys.topic(OTHER)), Delete(keys.name("other"))])
    store.add_controller()
    store.put(keys.configs("3"), encoding.encode_configs({}))
    touched = kept_up.apply(change for batch in store.history[seen:] for change in batch.changes)
    assert differences(old, store.image()) == touched
    assert touched.brokers == {2}
    assert touched.topics == {OTHER}
    assert touched.partitions == {P0, PartitionKey(OTHER, 0)}
