"""Replies of the group coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ottla.machines.groups.records import Assignment, CommittedOffset, ConsumerMember, CurrentAssignment
from ottla.machines.groups.requests import NO_GENERATION, NO_MEMBER_ID
from ottla.protocol.model.errors import ErrorCode, Refused

NONE = ErrorCode.none


class JoinedMember(NamedTuple):
    """A member of a new generation, as the leader of a classic group gets it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """The reply to JoinGroup, given when the join phase ends."""

    error: ErrorCode = NONE
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """Set only for the leader, which assigns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """The reply to SyncGroup, given when the leader has sent the assignments."""

    error: ErrorCode = NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class HeartbeatReply(NamedTuple):
    """The reply to Heartbeat; an error may ask the member to rejoin."""

    error: ErrorCode = NONE


class LeftMember(NamedTuple):
    """The result for one member that LeaveGroup names."""

    member_id: str
    instance_id: str | None
    error: ErrorCode


class LeaveReply(NamedTuple):
    """The reply to LeaveGroup, with the members in the order of the request."""

    error: ErrorCode = NONE
    members: tuple[LeftMember, ...] = ()


class CommitReply(NamedTuple):
    """The reply to a commit of offsets, transactional or not."""

    errors: tuple[ErrorCode, ...]
    """Errors in the order of the request."""


class FetchedOffset(NamedTuple):
    """The committed offset of one partition."""

    topic: str
    partition: int
    value: CommittedOffset | None
    """None if no offset was committed."""
    error: ErrorCode = NONE


class FetchOffsetsReply(NamedTuple):
    """The reply to OffsetFetch for one group."""

    error: ErrorCode = NONE
    offsets: tuple[FetchedOffset, ...] = ()


class DeleteOffsetsReply(NamedTuple):
    """The reply to OffsetDelete, with an error for each topic and partition."""

    error: ErrorCode = NONE
    partitions: tuple[tuple[str, int, ErrorCode], ...] = ()


class DeleteGroupReply(NamedTuple):
    """The reply to DeleteGroups for one group."""

    error: ErrorCode = NONE


class ListedGroup(NamedTuple):
    """One group of ListGroups; `type` is Classic or Consumer."""

    group: str
    protocol_type: str
    state: str
    type: str


class ListGroupsReply(NamedTuple):
    """The reply to ListGroups, for the groups of one coordinator."""

    groups: tuple[ListedGroup, ...]


class DescribedMember(NamedTuple):
    """One member in DescribeGroups. Its metadata and assignment are opaque bytes of its protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeReply:
    """The reply to DescribeGroups for one group; a group that does not exist is Dead."""

    error: ErrorCode = NONE
    state: str = "Dead"
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


class DescribedConsumer(NamedTuple):
    """One member in ConsumerGroupDescribe, with its current and its target assignment."""

    member_id: str
    member: ConsumerMember
    current: CurrentAssignment
    target: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConsumerReply:
    """The reply to ConsumerGroupDescribe for one group."""

    error: ErrorCode = NONE
    state: str = "Dead"
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatReply:
    """The reply to ConsumerGroupHeartbeat: the member's epoch and its assignment if that has changed."""

    error: ErrorCode = NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """None if the assignment is unchanged."""


Reply = (
    JoinReply
    | SyncReply
    | HeartbeatReply
    | LeaveReply
    | CommitReply
    | FetchOffsetsReply
    | DeleteOffsetsReply
    | DeleteGroupReply
    | ListGroupsReply
    | DescribeReply
    | DescribeConsumerReply
    | ConsumerHeartbeatReply
    | Refused
)
