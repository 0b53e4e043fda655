"""The cluster state in the coordination store, as values.

A member is an incarnation of a broker: its id and its broker epoch. Each start of a broker is a new incarnation, and
its registration says since which broker epoch it has kept its data. An ISR member therefore counts as alive if its
broker is registered now and the member's broker epoch is not older than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from ottla.coordination.port import LeaseId, Revision
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.ids import TopicId

NO_LEADER = -1
NO_BROKER_EPOCH = -1

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T_co]):
    """A value with the version and the lease of its entry in the store."""

    value: T_co
    version: Revision
    lease: LeaseId | None = None


class Member(NamedTuple):
    """An incarnation of a broker."""

    broker_id: int
    broker_epoch: int


class PartitionKey(NamedTuple):
    """The identity of a partition: the id of its topic, and its index."""

    topic_id: TopicId
    partition: int


class BrokerState(StrEnum):
    """The state that a broker declares in its registration."""

    ACTIVE = "active"
    DRAINING = "draining"
    """The broker gives up its leaderships and gets no new replicas."""


@dataclass(frozen=True, slots=True)
class RetainedSince:
    """For each durability class, the broker epoch since which a broker has kept its data. Never decreases."""

    disk: int
    cache: int
    memory: int

    def since(self, durability: Durability) -> int:
        """Returns the epoch since which data of this durability class is kept."""
        if durability is Durability.DISK:
            return self.disk
        return self.cache if durability is Durability.CACHE else self.memory


@dataclass(frozen=True, slots=True)
class Registration:
    """A live incarnation of a broker. The entry expires with its lease."""

    broker_id: int
    epoch: int
    host: str
    port: int
    machine: str
    """The failure domain `host`: brokers that share it never hold two copies of a partition."""
    kept: RetainedSince
    rack: str | None = None
    state: BrokerState = BrokerState.ACTIVE
    wal_port: int = 0
    """Port of its append stream, on the same host; 0 if it has none."""
    inter_broker: tuple[str, int] | None = None
    """Host and port for other brokers, if they differ from those for clients."""
    endpoints: tuple[tuple[str, str, int], ...] = ()
    """Name, host and port of every listener; empty if there is only one, without a name."""

    def address_at(self, listener: str | None) -> tuple[str, int] | None:
        """Returns host and port of a listener, or None if the broker has no such listener. Without a name, and for a
        broker that did not register its listeners by name, they are those for clients."""
        if listener is None or not self.endpoints:
            return self.host, self.port
        return next(((host, port) for name, host, port in self.endpoints if name == listener), None)

    @property
    def member(self) -> Member:
        """The broker with its epoch, as an ISR names it."""
        return Member(self.broker_id, self.epoch)

    @property
    def inter_broker_address(self) -> tuple[str, int]:
        """Host and port for other brokers: the client address unless there is a separate one."""
        return self.inter_broker or (self.host, self.port)

    @property
    def is_draining(self) -> bool:
        """True if the broker gives up its leaderships and gets no new replicas."""
        return self.state is BrokerState.DRAINING


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The last start of a broker. It remains when the registration is gone, and the next start counts from here."""

    epoch: int
    directory_id: str
    boot_id: str
    kept: RetainedSince
    process_id: str = ""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The replicas of a partition, its leader, and the replicas that are in sync.

    The eligible replicas (KIP-966) dropped out of an ISR that was below min.insync.replicas. They may be elected,
    because the high watermark does not advance in the meantime: a leader advances it only while this state, as
    confirmed in the store, has at least min.insync.replicas in the ISR *and no eligible replicas*. The second condition
    makes it safe that brokers learn of a changed min.insync.replicas at different times.

    During a reassignment (KIP-455), `replicas` contains both the old and the new replicas. A broker in both `adding`
    and `removing` belongs to neither: the target changed before its replica was in sync.
    """

    replicas: tuple[int, ...]
    """The replicas, in order of preference."""
    leader: int
    leader_broker_epoch: int
    leader_epoch: int
    isr: tuple[Member, ...]
    eligible: tuple[Member, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    anew_in_epoch: int = 0
    """For `memory`: the leader epoch in which every copy was lost, so that the log started anew. 0 if that never
    happened."""

    @property
    def leader_member(self) -> Member:
        """The leader with the broker epoch in which it was elected."""
        return Member(self.leader, self.leader_broker_epoch)

    @property
    def has_leader(self) -> bool:
        """False while no replica may lead."""
        return self.leader != NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        """True while replicas are being added or removed."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that remain when the reassignment completes."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas that remain when the reassignment is cancelled."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def replication_factor(self) -> int:
        """The lower of the old and the new replication factor: a topic that gains replicas must not depend
        on them yet."""
        if not self.is_reassigning:
            return len(self.replicas)
        return min(len(self.original), len(self.target))

    def in_isr(self, broker_id: int) -> bool:
        """Returns whether any incarnation of the broker is in the ISR."""
        return any(member.broker_id == broker_id for member in self.isr)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic, its configuration overrides and its number of partitions."""

    id: TopicId
    name: str
    partition_count: int
    """Partitions from this index on do not exist, even if the store has entries for them: they are being created, or
    are left over."""
    configs: Mapping[str, str]
    created_ms: int
    replicas_wanted: int = 0
    """For an internal topic that was created with fewer replicas because brokers were missing: the number it should
    have. 0 if it has them all."""


@dataclass(frozen=True, slots=True)
class ControllerEntry:
    """The incarnation that is the controller."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class FailedLogs:
    """Logs of a live broker that can no longer be written or read. Valid only for the incarnation that it names."""

    broker_epoch: int
    all_disk: bool = False
    partitions: frozenset[PartitionKey] = field(default_factory=frozenset)

    def has(self, partition: PartitionKey, durability: Durability) -> bool:
        """Returns whether the log of this partition has failed; a failed disk fails all logs of the disk class."""
        return (self.all_disk and durability is Durability.DISK) or partition in self.partitions


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """Marks a topic whose partitions are being written in several transactions. Held under the creator's lease."""

    name: str
    creator: Member


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A deleted topic, kept until every broker has removed its logs. It identifies a log that returns with a broker
    that was away, and distinguishes it from a log of an unknown topic (safety: topic-identity)."""

    name: str
    brokers: frozenset[int]
    """Brokers that have not yet reported that nothing is left."""
