"""Creates, alters and deletes topics, on the broker that receives the request.

A topic with few partitions is created in one transaction. A larger topic needs several. It must not be visible before
it is complete, and the controller must not mistake it for left-over entries:

1. `creating/<topic id>` is written, under the lease of the creator.
2. The partitions are written; each transaction is conditional on the version of that entry.
3. The topic is written, with its name or its new count, and `creating/<topic id>` is deleted.

Partitions without their topic are not visible. Once the entry of step 1 is gone (the creator gave up, or its lease
expired), no transaction of steps 2 and 3 can be applied any more. The partitions written so far are then left over for
good, and the controller removes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ottla.coordination.port import Condition, Delete, HasVersion, IsAbsent, LeaseId, Operation, Put, Revision
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.assignment import Replicas
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.state import (
    DeletedTopic,
    Member,
    PartitionKey,
    PartitionState,
    TopicCreation,
    TopicState,
)
from ottla.machines.controller.writes import Limits, Packing, Write
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId
from ottla.protocol.model.topic_names import check_name


class Step(NamedTuple):
    """The conditions and operations of one change."""

    conditions: tuple[Condition, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Creation:
    """The writes that create a topic. Commit `first`; if it was applied at some revision, commit the writes that `rest`
    returns for that revision, in order.

    If one of them fails, commit the write that `abandon` returns. A conflict in one of the remaining writes is final:
    its conditions will not hold again.
    """

    topic: TopicState
    first: Write
    _limits: Limits
    _partitions: tuple[Step, ...] = ()
    _last: Step | None = None
    """None if the first write is the only one."""

    def rest(self, first_applied: Revision) -> list[Write]:
        """Returns the writes that follow the first one, which was applied at this revision.

        The last makes the topic visible.
        """
        if self._last is None:
            return []
        name, key = self.topic.name, keys.creating(self.topic.id)
        under_way = HasVersion(key, first_applied)
        packing = Packing(self._limits, [under_way], lambda count: f"{count} partition(s) of '{name}' are created")
        for step in self._partitions:
            packing.add(*step)
        conditions, operations = self._last
        last = Write((under_way, *conditions), (*operations, Delete(key)), f"'{name}' is there")
        return [*packing.writes(), last]

    def abandon(self, first_applied: Revision) -> Write | None:
        """Returns the write that gives up the creation after the first write; None if that one was all."""
        if self._last is None:
            return None
        key = keys.creating(self.topic.id)
        return Write((HasVersion(key, first_applied),), (Delete(key),), f"'{self.topic.name}' is not created")


def check_new_name(image: ClusterImage, name: str) -> Refused | None:
    """Checks that a name is valid, free, and does not collide with another in metric names."""
    refused = check_name(name)
    if refused is not None:
        return refused
    similar = image.names_like(name)
    if name in similar:
        return Refused(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    if similar:
        return Refused(
            ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {min(similar)}"
        )
    return None


def create_topic(
    image: ClusterImage,
    topic: TopicState,
    assignment: Sequence[Replicas],
    creator: Member,
    lease: LeaseId,
    limits: Limits | None = None,
) -> Creation | Refused:
    """Plans the creation of a topic. The assignment comes from `assignment.place`, or was given and passed
    `check_manual`."""
    refused = check_new_name(image, topic.name) or _check_assignment(image, topic, assignment)
    if refused is not None:
        return refused
    name_key, topic_key = keys.name(topic.name), keys.topic(topic.id)
    free = (IsAbsent(name_key), IsAbsent(topic_key))
    puts = (Put(topic_key, encoding.encode_topic(topic)), Put(name_key, encoding.encode_name(topic.id)))
    steps = _partition_steps(image, topic, assignment)
    return _creation(topic, steps, Step(free, puts), creator, lease, limits or Limits())


def create_partitions(
    image: ClusterImage,
    topic_id: TopicId,
    assignment: Sequence[Replicas],
    creator: Member,
    lease: LeaseId,
    limits: Limits | None = None,
) -> Creation | Refused:
    """Plans additional partitions for a topic. The assignment is that of the partitions to add."""
    found = image.topic_entry(topic_id)
    if found is None:
        return _unknown_topic()
    topic = replace(found.value, partition_count=found.value.partition_count + len(assignment))
    refused = check_new_count(found.value, topic.partition_count) or _check_assignment(image, topic, assignment)
    if refused is not None:
        return refused
    topic_key = keys.topic(topic_id)
    last = Step((HasVersion(topic_key, found.version),), (Put(topic_key, encoding.encode_topic(topic)),))
    steps = _partition_steps(image, topic, assignment)
    return _creation(topic, steps, last, creator, lease, limits or Limits())


def check_new_count(topic: TopicState, count: int) -> Refused | None:
    """Checks that a new partition count is an increase."""
    current = topic.partition_count
    if count == current:
        return Refused(ErrorCode.invalid_partitions, f"Topic already has {current} partition(s).")
    if count < current:
        return Refused(
            ErrorCode.invalid_partitions,
            f"The topic {topic.name} currently has {current} partition(s); {count} would not be an increase.",
        )
    return None


def _check_assignment(image: ClusterImage, topic: TopicState, assignment: Sequence[Replicas]) -> Refused | None:
    first = topic.partition_count - len(assignment)
    for index, replicas in enumerate(assignment, first):
        if not _in_sync(image, replicas):
            return Refused(
                ErrorCode.invalid_replica_assignment,
                f"All brokers in the assignment of partition {index} are unavailable or draining.",
            )
    return None


def _creation(
    topic: TopicState, partitions: Sequence[Step], last: Step, creator: Member, lease: LeaseId, limits: Limits
) -> Creation:
    at_once = Packing(limits, (), lambda count: f"'{topic.name}' gets {count - 1} partition(s)")
    for step in (last, *partitions):
        at_once.add(*step)
    writes = at_once.writes()
    if len(writes) == 1:
        return Creation(topic, writes[0], limits)
    key = keys.creating(topic.id)
    begun = Put(key, encoding.encode_creating(TopicCreation(topic.name, creator)), lease)
    why = f"the creation of {len(partitions)} partition(s) of '{topic.name}' begins"
    first = Write((IsAbsent(key), *last.conditions), (begun,), why)
    return Creation(topic, first, limits, tuple(partitions), last)


def _partition_steps(image: ClusterImage, topic: TopicState, assignment: Sequence[Replicas]) -> list[Step]:
    """Returns the changes that write the initial state of the topic's last partitions."""
    steps = []
    for index, replicas in enumerate(assignment, topic.partition_count - len(assignment)):
        key = keys.partition(PartitionKey(topic.id, index))
        state = _first_state(image, replicas)
        # A replica that starts in sync must still be the same incarnation when the write is applied.
        still_there = [image.unchanged(keys.broker(member.broker_id)) for member in state.isr]
        steps.append(Step((IsAbsent(key), *still_there), (Put(key, encoding.encode_partition(state)),)))
    return steps


def _first_state(image: ClusterImage, replicas: Replicas) -> PartitionState:
    isr = _in_sync(image, replicas)
    return PartitionState(replicas, isr[0].broker_id, isr[0].broker_epoch, 0, isr)


def _in_sync(image: ClusterImage, replicas: Replicas) -> tuple[Member, ...]:
    found = [image.registration(broker_id) for broker_id in replicas]
    return tuple(each.member for each in found if each is not None and not each.is_draining)


def unfinished_creations(image: ClusterImage, me: Member, under_way: Collection[TopicId]) -> list[Write]:
    """Removes creations that this incarnation has abandoned; their entries would otherwise last as long as
    its lease."""
    return [
        Write(
            (HasVersion(keys.creating(topic_id), found.version),),
            (Delete(keys.creating(topic_id)),),
            f"the creation of '{found.value.name}' is abandoned",
        )
        for topic_id, found in image.creating().items()
        if found.value.creator == me and topic_id not in under_way
    ]


# -- change and delete ------------------------------------------------------------------------------------------------


def delete_topic(image: ClusterImage, topic_id: TopicId) -> Write | Refused:
    """Deletes a topic. Its partitions become invisible at once; the controller removes them."""
    topic = image.topic(topic_id)
    if topic is None:
        return Refused(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    gone = keys.topic(topic_id), keys.name(topic.name)
    remembered = encoding.encode_deleted(DeletedTopic(topic.name, image.hosts_of(topic_id)))
    return Write(
        tuple(image.unchanged(key) for key in gone),
        (*(Delete(key) for key in gone), Delete(keys.creating(topic_id)), Put(keys.deleted(topic_id), remembered)),
        f"'{topic.name}' is deleted",
    )


def forget_deleted(image: ClusterImage, topic_id: TopicId, broker_id: int) -> Write | None:
    """Records that no log of the topic is left on this broker."""
    found = image.deleted().get(topic_id)
    if found is None or broker_id not in found.value.brokers:
        return None
    key, left = keys.deleted(topic_id), found.value.brokers - {broker_id}
    operation = Put(key, encoding.encode_deleted(replace(found.value, brokers=left))) if left else Delete(key)
    why = f"broker {broker_id} has removed all data of '{found.value.name}'"
    return Write((HasVersion(key, found.version),), (operation,), why)


def alter_topic_configs(image: ClusterImage, topic_id: TopicId, configs: Mapping[str, str]) -> Write | Refused | None:
    """Replaces all overrides of the topic. The caller has validated them."""
    topic = image.topic(topic_id)
    if topic is None:
        return _unknown_topic()
    if topic.configs == configs:
        return None
    key = keys.topic(topic_id)
    put = Put(key, encoding.encode_topic(replace(topic, configs=dict(configs))))
    return Write((image.unchanged(key),), (put,), f"configuration of '{topic.name}'")


def alter_broker_configs(image: ClusterImage, broker_id_or_default: str, configs: Mapping[str, str]) -> Write | None:
    """Replaces all dynamic configurations of a broker, or the defaults of all brokers. The caller has
    validated them."""
    if image.configs(broker_id_or_default) == configs:
        return None
    key = keys.configs(broker_id_or_default)
    operation = Put(key, encoding.encode_configs(configs)) if configs else Delete(key)
    return Write((image.unchanged(key),), (operation,), f"dynamic configuration '{broker_id_or_default}'")


def _unknown_topic() -> Refused:
    return Refused(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
