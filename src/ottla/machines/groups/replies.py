"""Replies of the group coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ottla.machines.groups.records import Assignment, CommittedOffset, ConsumerMember, CurrentAssignment
from ottla.machines.groups.requests import NO_GENERATION, NO_MEMBER_ID
from ottla.protocol.model.errors import ErrorCode, Refused

NONE = ErrorCode.none


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
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
    error: ErrorCode = NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class HeartbeatReply(NamedTuple):
    error: ErrorCode = NONE


class LeftMember(NamedTuple):
    member_id: str
    instance_id: str | None
    error: ErrorCode


class LeaveReply(NamedTuple):
    error: ErrorCode = NONE
    members: tuple[LeftMember, ...] = ()


class CommitReply(NamedTuple):
    errors: tuple[ErrorCode, ...]
    """Errors in the order of the request."""


class FetchedOffset(NamedTuple):
    topic: str
    partition: int
    value: CommittedOffset | None
    """None if no offset was committed."""
    error: ErrorCode = NONE


class FetchOffsetsReply(NamedTuple):
    error: ErrorCode = NONE
    offsets: tuple[FetchedOffset, ...] = ()


class DeleteOffsetsReply(NamedTuple):
    error: ErrorCode = NONE
    partitions: tuple[tuple[str, int, ErrorCode], ...] = ()


class DeleteGroupReply(NamedTuple):
    error: ErrorCode = NONE


class ListedGroup(NamedTuple):
    group: str
    protocol_type: str
    state: str
    type: str


class ListGroupsReply(NamedTuple):
    groups: tuple[ListedGroup, ...]


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeReply:
    error: ErrorCode = NONE
    state: str = "Dead"
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


class DescribedConsumer(NamedTuple):
    member_id: str
    member: ConsumerMember
    current: CurrentAssignment
    target: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConsumerReply:
    error: ErrorCode = NONE
    state: str = "Dead"
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatReply:
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
