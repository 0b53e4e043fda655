"""A coordination store in one process without a clock: versions, leases, history. For tests of the controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from uuid import UUID

from ottla.coordination.port import (
    Batch,
    Change,
    Committed,
    Conflict,
    Entry,
    LeaseId,
    Operation,
    Outcome,
    Put,
    Revision,
    check_commit,
    conditions_hold,
)
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.state import (
    NO_BROKER_EPOCH,
    NO_LEADER,
    ControllerEntry,
    Incarnation,
    Member,
    PartitionKey,
    PartitionState,
    Registration,
    RetainedSince,
    TopicState,
    Versioned,
)
from ottla.machines.controller.writes import Write
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.ids import TopicId

TOPIC = TopicId(UUID(int=0x70))
P0 = PartitionKey(TOPIC, 0)


class Store:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        self.history: list[Batch] = []

    def commit(self, write: Write) -> Outcome:
        check_commit(write.conditions, write.operations)
        shown = {condition.key: self.entries.get(condition.key) for condition in write.conditions}
        if not conditions_hold(write.conditions, shown):
            return Conflict(shown)
        return Committed(self.change(write.operations))

    def change(self, operations: Iterable[Operation]) -> Revision:
        """Commits one transaction without conditions."""
        revision = Revision(self.revision + 1)
        changes = []
        for operation in operations:
            if isinstance(operation, Put):
                entry = Entry(operation.key, operation.value, revision, operation.lease)
                self.entries[operation.key] = entry
                changes.append(Change(operation.key, entry))
            elif self.entries.pop(operation.key, None) is not None:
                changes.append(Change(operation.key, None))
        if changes:
            self.revision = revision
            self.history.append(Batch(tuple(changes), revision))
        return Revision(self.revision)

    def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> Revision:
        return self.change([Put(key, value, lease)])

    def end_lease(self, lease: LeaseId) -> None:
        gone = [key for key, entry in self.entries.items() if entry.lease == lease]
        for key in gone:
            del self.entries[key]
        if gone:
            self.revision += 1
            self.history.append(Batch(tuple(Change(key, None) for key in gone), Revision(self.revision)))

    def image(self) -> ClusterImage:
        return ClusterImage.load(self.entries[key] for key in sorted(self.entries))

    # -- content that tests write ---------------------------------------------------------------------------------

    def add_broker(
        self,
        broker_id: int,
        epoch: int = 1,
        *,
        kept: int | RetainedSince | None = None,
        machine: str | None = None,
        rack: str | None = None,
    ) -> Registration:
        """Registers a broker. Without `kept` it retained nothing from earlier epochs; with a number, it retained `disk`
        and `cache` data since that epoch."""
        if not isinstance(kept, RetainedSince):
            since = epoch if kept is None else kept
            kept = RetainedSince(disk=since, cache=since, memory=epoch)
        machine = machine or f"machine-{broker_id}"
        registration = Registration(broker_id, epoch, "127.0.0.1", 9000 + broker_id, machine, kept, rack)
        self.put(keys.broker(broker_id), encoding.encode_registration(registration), LeaseId(broker_id))
        incarnation = Incarnation(epoch, f"directory-{broker_id}", f"boot-{broker_id}", kept)
        self.put(keys.incarnation(broker_id), encoding.encode_incarnation(incarnation))
        return registration

    def add_topic(
        self,
        partitions: Iterable[PartitionState],
        *,
        topic_id: TopicId = TOPIC,
        name: str = "events",
        durability: Durability = Durability.DISK,
        configs: Mapping[str, str] = MappingProxyType({}),
        replicas_wanted: int = 0,
    ) -> TopicState:
        states = list(partitions)
        for index, state in enumerate(states):
            self.put(keys.partition(PartitionKey(topic_id, index)), encoding.encode_partition(state))
        given = {"ottla.durability": durability.value, **configs}
        topic = TopicState(topic_id, name, len(states), given, created_ms=0, replicas_wanted=replicas_wanted)
        self.change(
            [
                Put(keys.topic(topic_id), encoding.encode_topic(topic)),
                Put(keys.name(name), encoding.encode_name(topic_id)),
            ]
        )
        return topic

    def set_partition(self, state: PartitionState, key: PartitionKey = P0) -> None:
        self.put(keys.partition(key), encoding.encode_partition(state))

    def add_controller(self, broker_id: int = 1, broker_epoch: int = 1) -> Versioned[ControllerEntry]:
        """Writes the controller under a lease of its own, so that it survives when a test removes the brokers."""
        entry, lease = ControllerEntry(broker_id, broker_epoch), LeaseId(100 + broker_id)
        version = self.put(keys.CONTROLLER, encoding.encode_controller(entry), lease)
        return Versioned(entry, version, lease)

    def state(self, key: PartitionKey = P0) -> PartitionState:
        return encoding.decode_partition(self.entries[keys.partition(key)])


def members(text: str) -> tuple[Member, ...]:
    """Parses broker epochs: '1:3 2' is broker 1 in epoch 3 and broker 2 in epoch 1."""
    pairs = [part.partition(":") for part in text.split()]
    return tuple(Member(int(broker), int(epoch or "1")) for broker, _, epoch in pairs)


def partition(
    replicas: str,
    leader: str = "",
    isr: str | None = None,
    eligible: str = "",
    *,
    epoch: int = 0,
    adding: str = "",
    removing: str = "",
    anew_in_epoch: int = 0,
) -> PartitionState:
    """Writes a partition in the short form of `members`. The ISR defaults to all replicas, the leader to none."""
    return PartitionState(
        tuple(map(int, replicas.split())),
        *(members(leader)[0] if leader else Member(NO_LEADER, NO_BROKER_EPOCH)),
        epoch,
        members(replicas if isr is None else isr),
        members(eligible),
        tuple(map(int, adding.split())),
        tuple(map(int, removing.split())),
        anew_in_epoch,
    )
