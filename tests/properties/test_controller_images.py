"""An image that was kept up by changes is the one that a snapshot gives, whatever was written."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ottla.coordination.port import Change, Delete, Entry, Operation, Put, Revision
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.image_differences import differences, partitions_concerned
from ottla.machines.controller.state import FailedLogs, Member, PartitionKey, TopicCreation, TopicState
from ottla.protocol.model.ids import TopicId
from tests.support.controller_store import Store, partition

TOPICS = [TopicId(UUID(int=number)) for number in (1, 2)]
NAMES = ["a.b", "a_b"]


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    """Entries that fit together or do not, and values that nobody can read."""
    topic_id, number = draw(st.sampled_from(TOPICS)), draw(st.integers(0, 2))
    topic = TopicState(topic_id, draw(st.sampled_from(NAMES)), number, {}, 0)
    state = partition(draw(st.sampled_from(["1", "1 2", "2 1", "3 1 2"])), draw(st.sampled_from(["", "1", "2"])))
    moving = partition("1 2 3", "1", adding="3")
    key, value = draw(
        st.sampled_from(
            [
                (keys.topic(topic_id), encoding.encode_topic(topic)),
                (keys.name(topic.name), encoding.encode_name(topic_id)),
                (keys.partition(PartitionKey(topic_id, number)), encoding.encode_partition(state)),
                (keys.partition(PartitionKey(topic_id, number)), encoding.encode_partition(moving)),
                (keys.creating(topic_id), encoding.encode_creating(TopicCreation(topic.name, Member(1, 1)))),
                (keys.failures(number), encoding.encode_failures(FailedLogs(1, all_disk=True))),
                (keys.configs("default"), encoding.encode_configs({"a": str(number)})),
                ("ids/producers", b"5"),
            ]
        )
    )
    fate = draw(st.integers(0, 9))
    return Delete(key) if fate < 3 else Put(key, b"?" if fate == 3 else value)


def all_of(image: ClusterImage) -> dict[str, Any]:
    return {
        "topics": dict(image.topic_table()),
        "partitions": dict(image.partitions()),
        "by topic": {topic_id: image.partitions_of(topic_id) for topic_id in TOPICS},
        "led": {broker_id: (set(image.led_by(broker_id)), image.leader_count(broker_id)) for broker_id in range(-1, 4)},
        "hosted": {
            broker_id: (set(image.hosted_by(broker_id)), image.replica_count(broker_id)) for broker_id in range(4)
        },
        "reassigning": set(image.reassigning()),
        "left over": dict(image.left_over()),
        "names": [(image.topic_named(name), set(image.names_like(name))) for name in NAMES],
        "creating": dict(image.creating()),
        "brokers": [dict(table) for table in image.broker_tables()],
        "configs": dict(image.configs_table()),
        "unreadable": {problem.key: problem for problem in image.unreadable()},
    }


@given(st.lists(operations(), max_size=40), st.integers(0, 40))
def test_changes_lead_where_a_snapshot_leads(written: list[Operation], loaded_after: int) -> None:
    store, kept_up = Store(), ClusterImage()
    earlier = ClusterImage()
    for number, operation in enumerate(written):
        if number == loaded_after:
            earlier = store.image()
        seen = len(store.history)
        store.change([operation])
        for batch in store.history[seen:]:
            touched = kept_up.apply(batch.changes)
            assert partitions_concerned(kept_up, touched) <= {key for key, _ in kept_up.partitions()}
    fresh = store.image()
    assert all_of(kept_up) == all_of(fresh)
    for key, entry in store.entries.items():
        if not key.startswith("ids/"):
            assert kept_up.version_of(key) == entry.version
    difference = differences(earlier, fresh)
    visible_before, visible_now = dict(earlier.partitions()), dict(fresh.partitions())
    changed = {key for key in visible_before | visible_now if visible_before.get(key) != visible_now.get(key)}
    assert difference.partitions == changed


@given(st.text(max_size=60), st.binary(max_size=80))
def test_no_key_and_no_value_is_too_strange(key: str, value: bytes) -> None:
    image = ClusterImage()
    for prefix in ("", "brokers/", "topics/", "names/", "partitions/", "configs/", "creating/", "failures/"):
        image.apply([Change(prefix + key, Entry(prefix + key, value, Revision(1)))])
    for known in (keys.broker(1), keys.partition(PartitionKey(TOPICS[0], 0)), keys.CONTROLLER, keys.topic(TOPICS[0])):
        image.apply([Change(known, Entry(known, value, Revision(2)))])
    assert not list(image.partitions())
