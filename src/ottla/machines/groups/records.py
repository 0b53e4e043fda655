"""The contents of a partition of `__consumer_offsets` as values: one class for each kind of key.

A record holds the current state. A `value` of None is a tombstone. Nothing else about a group survives a failover.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from ottla.protocol.model.ids import TopicId

NO_TIME = -1
CONSUMER_PROTOCOL_TYPE = "consumer"

Assigned = tuple[TopicId, int]
Assignment = frozenset[Assigned]
NOTHING: Assignment = frozenset()


class CommittedOffset(NamedTuple):
    """The offset that a group committed for one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int = NO_TIME
    """Set only if the commit asked for its own retention, as old clients can."""


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """A member of a generation of the classic protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class ClassicGeneration:
    """The last generation of a classic group. A generation with members but no leader has not been assigned yet."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[ClassicMember, ...] = ()


class TopicFacts(NamedTuple):
    """What a group knows about a topic that it subscribes to."""

    id: TopicId
    partition_count: int


@dataclass(frozen=True, slots=True)
class ClassicProtocols:
    """The protocols of a consumer-group member that still speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of the consumer protocol (KIP-848), as it described itself."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_names: tuple[str, ...]
    subscribed_regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicProtocols | None = None


class MemberState(IntEnum):
    """The progress of a member towards its target. The numbers are those of Kafka's records."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    """It was asked to revoke partitions and has not confirmed it."""
    UNRELEASED_PARTITIONS = 3
    """It waits for partitions that other members still own."""
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The partitions that a member has, and those it was asked to revoke. It owns both until it confirms."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression matched when it was last resolved."""

    topics: tuple[str, ...]
    version: int
    resolved_ms: int


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A committed offset; None deletes it."""

    group: str
    topic: str
    partition: int
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class ClassicRecord:
    """The last generation of a classic group; None deletes the group."""

    group: str
    value: ClassicGeneration | None


@dataclass(frozen=True, slots=True)
class GroupEpochRecord:
    """The epoch of a consumer group; None deletes the group."""

    group: str
    value: int | None


@dataclass(frozen=True, slots=True)
class SubscribedTopicsRecord:
    """The topics that a consumer group subscribes to, as of its epoch; None deletes the record."""

    group: str
    value: tuple[tuple[str, TopicFacts], ...] | None
    """Sorted by name."""


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """The subscription and client of a member of a consumer group; None removes the member."""

    group: str
    member_id: str
    value: ConsumerMember | None


@dataclass(frozen=True, slots=True)
class TargetEpochRecord:
    """The epoch for which the target assignment of a consumer group was computed."""

    group: str
    value: int | None


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """The target assignment of a member; None removes it."""

    group: str
    member_id: str
    value: Assignment | None


@dataclass(frozen=True, slots=True)
class CurrentRecord:
    """The assignment that a member has now; None removes it."""

    group: str
    member_id: str
    value: CurrentAssignment | None


@dataclass(frozen=True, slots=True)
class RegexRecord:
    """The topics that match a subscribed regular expression; None removes the result."""

    group: str
    regex: str
    value: ResolvedRegex | None


ConsumerRecord = (
    GroupEpochRecord
    | SubscribedTopicsRecord
    | MemberRecord
    | TargetEpochRecord
    | TargetRecord
    | CurrentRecord
    | RegexRecord
)
Record = OffsetRecord | ClassicRecord | ConsumerRecord


class Unknown(NamedTuple):
    """A record of a kind that this coordinator does not keep, such as a share group's. It stays in the log."""

    key_version: int


class Unreadable(NamedTuple):
    """A record that could not be decoded."""

    why: str
