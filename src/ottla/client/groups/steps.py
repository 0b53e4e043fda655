"""The steps that a member's state machine requests, and their outcomes. Values only.

The state machines (`group_classic`, `group_consumer`) decide; `group_membership` sends requests and waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.groups.classic_formats import MemberSubscription
from ottla.protocol.model.errors import ErrorCode

Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits until this time or until something changes."""

    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup."""

    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CountPartitions:
    """Looks up the topics of all members, which the leader needs before it assigns."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup; the assignments come from the leader."""

    member_id: str
    generation: int
    protocol: str
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatStep:
    """Heartbeat."""

    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """LeaveGroup."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """ConsumerGroupHeartbeat. A field that is None has not changed."""

    member_id: str
    epoch: int
    subscribed: frozenset[str] | None = None
    owned: frozenset[tuple[UUID, int]] | None = None
    is_full: bool = False
    """Includes the fields that never change: the rebalance timeout, the assignor and the instance id."""


Ask = Join | CountPartitions | Sync | HeartbeatStep | Leave | Report
Step = Wait | Ask


@dataclass(frozen=True, slots=True)
class Joined:
    """The reply to JoinGroup."""

    generation: int
    member_id: str
    protocol: str
    is_leader: bool
    members: Mapping[str, MemberSubscription]
    """The members of the group; only the leader receives them."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class MemberIdReply:
    """The id of a new member, which has to join again with it."""

    member_id: str


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """The partition count of each topic."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Synced:
    """The reply to SyncGroup."""

    assigned: Partitions


@dataclass(frozen=True, slots=True)
class ReportReply:
    """The reply to ConsumerGroupHeartbeat."""

    member_id: str
    epoch: int
    interval_s: float
    assigned: frozenset[tuple[UUID, int]] | None = None


@dataclass(frozen=True, slots=True)
class SuccessReply:
    """Success of a request whose reply has only an error code: Beat, Leave."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error code of the coordinator."""

    error: ErrorCode
    message: str | None = None


@dataclass(frozen=True, slots=True)
class NoReply:
    """No reply. The coordinator may or may not have received the request."""


Outcome = Joined | MemberIdReply | PartitionCounts | Synced | ReportReply | SuccessReply | ErrorReply | NoReply


@dataclass(frozen=True, slots=True)
class Handover:
    """The change that the user's side executes at its next fetch: first give up, then take."""

    give_up: Partitions = NOTHING
    take: Partitions = NOTHING
    lost: bool = False
    """The partitions are lost: another member may own them, and nothing can be committed."""


class Identity(NamedTuple):
    """The identity that a member puts into its commits."""

    member_id: str = ""
    generation: int = -1
    """The generation, or the member epoch in the consumer protocol."""
    instance_id: str | None = None


class Member(Protocol):
    """The state machine of a member. Times are seconds of a monotonic clock."""

    handover: Handover | None
    failure: ClientError | None
    """The error after which the member has stopped for good."""
    owned: Partitions
    wants_metadata: bool
    """Whether the assignment has topics that the member does not know."""

    @property
    def identity(self) -> Identity | None:
        """The identity for commits, or None while this is no member."""

    @property
    def is_settled(self) -> bool:
        """Whether this is a member with its whole assignment."""

    def subscribe(self, topics: frozenset[str]) -> None:
        """Subscribes to these topics."""
        ...

    def learn_topics(self, counts: Mapping[str, int], ids: Mapping[UUID, str]) -> None:
        """Takes the newest metadata."""

    def user_came(self) -> None:
        """The user asks for records and may wait for them."""

    def user_went(self, now_s: float) -> None:
        """The user's fetch ended. It has to come back before the poll interval is over."""

    def handover_began(self) -> None:
        """The user's side has begun to execute `handover`."""
        ...

    def handed_over(self) -> None:
        """The user's side has finished `handover`."""
        ...

    def next_step(self, now_s: float) -> Step:
        """Returns the next request, or how long to wait."""
        ...

    def heard(self, ask: Ask, outcome: Outcome, now_s: float) -> None:
        """Takes the outcome of a request."""
        ...

    def farewell(self) -> Ask | None:
        """Returns the request to send when the consumer is closed, or None."""
