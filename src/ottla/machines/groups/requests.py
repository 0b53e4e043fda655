"""What members and administrators ask of the coordinator, without versions and wire formats.

Where versions of an API differ in behaviour, the request says so by a flag.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.machines.groups.records import Assignment
from ottla.model.ids import TopicId

NO_GENERATION = -1
NO_MEMBER_ID = ""

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""A static member that comes back: its partitions are kept for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    group: str
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None
    protocol_type: str = "consumer"
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str = ""
    client_host: str = ""
    fresh_id: str
    """Made up by the caller, so that a new member's id can be made of it."""
    needs_known_id: bool = True
    """From version 4 on, a new member first gets an id and comes again with it."""
    can_skip_assignment: bool = True
    """From version 9 on, a static leader that comes back need not assign anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    group: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    group: str
    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    group: str
    members: tuple[Leaving, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToCommit:
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """OffsetCommit and, with a producer id, TxnOffsetCommit."""

    group: str
    offsets: tuple[ToCommit, ...]
    generation: int = NO_GENERATION
    """Or the member epoch."""
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None
    retention_ms: int = -1
    knows_epochs: bool = True
    """From version 9 on: GROUP_ID_NOT_FOUND is understood, and so are member epochs."""
    producer_id: int | None = None
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOffsets:
    """One group of an OffsetFetch."""

    group: str
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    """None are all that the group has."""
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    group: str
    topics: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroups:
    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    """DescribeGroups, of one."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConsumerGroup:
    """ConsumerGroupDescribe, of one."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat. None means unchanged, as in the protocol."""

    group: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_names: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    """Empty: no longer by a regular expression. The caller refuses one that is invalid."""
    assignor: str | None = None
    owned: Assignment | None = None
    fresh_id: str = ""
    """Made up by the caller: the id of a new member that does not bring one."""
    client_id: str = ""
    client_host: str = ""


Request = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | CommitOffsets
    | FetchOffsets
    | DeleteOffsets
    | DeleteGroup
    | ListGroups
    | DescribeGroup
    | DescribeConsumerGroup
    | ConsumerHeartbeat
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsChanged:
    """What topics there are now; `deleted` have gone since the last time, whatever their names are used for now."""

    topics: dict[str, tuple[TopicId, int]]
    deleted: frozenset[str] = frozenset()
    regexes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each regular expression in use, the names that it matches now."""
