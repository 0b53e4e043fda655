"""What the coordination store says of a cluster, as values.

A member is an incarnation of a broker: its id and its broker epoch. Each start of a broker is a new incarnation, and
a registration says since which broker epoch this broker has kept what it had. So a member of an ISR counts as alive if
its broker is registered now and the member's broker epoch is not older than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from ottla.coordination.port import LeaseId, Revision
from ottla.model.durability import Durability
from ottla.model.ids import TopicId

NO_LEADER = -1
NO_BROKER_EPOCH = -1

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T_co]):
    """A value as it stands in the store."""

    value: T_co
    version: Revision
    lease: LeaseId | None = None


class Member(NamedTuple):
    broker_id: int
    broker_epoch: int


class PartitionKey(NamedTuple):
    topic_id: TopicId
    partition: int


class BrokerState(StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"
    """Gives its leaderships away and gets no new replicas."""


@dataclass(frozen=True, slots=True)
class Kept:
    """For each durability class: since which of its epochs a broker has kept what it had. Never goes back."""

    disk: int
    cache: int
    memory: int

    def since(self, durability: Durability) -> int:
        if durability is Durability.DISK:
            return self.disk
        return self.cache if durability is Durability.CACHE else self.memory


@dataclass(frozen=True, slots=True)
class Registration:
    """A live incarnation of a broker. Its entry ends with its lease."""

    broker_id: int
    epoch: int
    host: str
    port: int
    machine: str
    """The failure domain `host`: brokers that share it never hold two copies of a partition."""
    kept: Kept
    rack: str | None = None
    state: BrokerState = BrokerState.ACTIVE
    wal_port: int = 0
    """Of its append stream, at the same host; 0 if it has none."""
    inter_broker: tuple[str, int] | None = None
    """Host and port for other brokers, if they are not those for clients."""

    @property
    def member(self) -> Member:
        return Member(self.broker_id, self.epoch)

    @property
    def inter_broker_address(self) -> tuple[str, int]:
        return self.inter_broker or (self.host, self.port)

    @property
    def is_draining(self) -> bool:
        return self.state is BrokerState.DRAINING


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The last start of a broker. Stays when its registration is gone: the next start counts on from here."""

    epoch: int
    directory_id: str
    boot_id: str
    kept: Kept
    process_id: str = ""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who has a partition's log, who leads, who is in sync.

    The eligible replicas (KIP-966) dropped out of an ISR that was below min.insync.replicas. They may be elected,
    because the watermark stands still meanwhile: a leader moves it only while this state, as it is confirmed in the
    store, has at least min.insync.replicas in the ISR *and no eligible replicas*. The second half makes it safe that
    brokers learn of a changed min.insync.replicas at different times.

    While replicas move (KIP-455), `replicas` has both the old and the new ones. A broker that stands in both `adding`
    and `removing` belongs to neither: another target was given before it had arrived.
    """

    replicas: tuple[int, ...]
    """In order of preference."""
    leader: int
    leader_broker_epoch: int
    leader_epoch: int
    isr: tuple[Member, ...]
    eligible: tuple[Member, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    anew_in_epoch: int = 0
    """For `memory`: the leader epoch in which every copy was lost, so that the log began anew. 0 if it never was."""

    @property
    def leader_member(self) -> Member:
        return Member(self.leader, self.leader_broker_epoch)

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that remain when the reassignment is complete."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas that remain when the reassignment is cancelled."""
        return tuple(broker for broker in self.replicas if broker not in self.adding)

    @property
    def replication_factor(self) -> int:
        """Of the old and the new replicas the fewer: a topic that gains replicas must not wait for them already."""
        if not self.is_reassigning:
            return len(self.replicas)
        return min(len(self.original), len(self.target))

    def in_isr(self, broker_id: int) -> bool:
        return any(member.broker_id == broker_id for member in self.isr)


@dataclass(frozen=True, slots=True)
class TopicState:
    id: TopicId
    name: str
    partition_count: int
    """Partitions from here on are not there, whatever the store holds of them: they are being created, or left over."""
    configs: Mapping[str, str]
    created_ms: int
    replicas_wanted: int = 0
    """Of an internal topic that was created with fewer replicas, because brokers were missing. 0 if it has them all."""


@dataclass(frozen=True, slots=True)
class ControllerEntry:
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class FailedLogs:
    """Logs of a live broker that cannot be written or read any more. Counts for the incarnation that it names."""

    broker_epoch: int
    all_disk: bool = False
    partitions: frozenset[PartitionKey] = field(default_factory=frozenset)

    def has(self, partition: PartitionKey, durability: Durability) -> bool:
        return (self.all_disk and durability is Durability.DISK) or partition in self.partitions


@dataclass(frozen=True, slots=True)
class Creating:
    """Partitions of this topic are being written, one transaction after the other. Under the lease of its creator."""

    name: str
    creator: Member


@dataclass(frozen=True, slots=True)
class Deleted:
    """A topic that is gone, until all who had logs of it have removed them: by this a log is known that comes back with
    a broker that was away, and one of a topic that nobody knows is not taken for it (SAFETY 26)."""

    name: str
    brokers: frozenset[int]
    """Those who have not said yet that nothing is left."""
