"""What a member's machine wants done next, and what it hears back. Values only.

The machines (`group_classic`, `group_consumer`) decide; `group_membership` sends and waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from ottla.client.errors import ClientError
from ottla.client.fetched import TopicPartition
from ottla.client.group_protocol import MemberSubscription
from ottla.model.errors import ErrorCode

Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class Wait:
    """Until then, or until something changes."""

    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Join:
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CountPartitions:
    """The leader has to know the topics of all members before it assigns."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sync:
    member_id: str
    generation: int
    protocol: str
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Beat:
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
    """ConsumerGroupHeartbeat: what is None has not changed."""

    member_id: str
    epoch: int
    subscribed: frozenset[str] | None = None
    owned: frozenset[tuple[UUID, int]] | None = None
    is_full: bool = False
    """Also what never changes: the rebalance timeout, the assignor and the instance id."""


Ask = Join | CountPartitions | Sync | Beat | Leave | Report
Step = Wait | Ask


@dataclass(frozen=True, slots=True)
class Joined:
    generation: int
    member_id: str
    protocol: str
    is_leader: bool
    members: Mapping[str, MemberSubscription]
    """For the leader only."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class GivenId:
    """A new member first gets its id and comes again with it."""

    member_id: str


@dataclass(frozen=True, slots=True)
class Counted:
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Synced:
    assigned: Partitions


@dataclass(frozen=True, slots=True)
class Reported:
    member_id: str
    epoch: int
    interval_s: float
    assigned: frozenset[tuple[UUID, int]] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Of what has no answer but an error: Beat, Leave."""


@dataclass(frozen=True, slots=True)
class RefusedBy:
    error: ErrorCode
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The coordinator may or may not have heard it."""


Outcome = Joined | GivenId | Counted | Synced | Reported | Done | RefusedBy | Unanswered


@dataclass(frozen=True, slots=True)
class Handover:
    """What the user's side has to do when it asks for records next: first give up, then take."""

    give_up: Partitions = NOTHING
    take: Partitions = NOTHING
    lost: bool = False
    """Whoever gives up has no right to them any more: another member may have them, and nothing can be committed."""


class Identity(NamedTuple):
    """With what a member signs its commits."""

    member_id: str = ""
    generation: int = -1
    """Or, in the consumer protocol, the member's epoch."""
    instance_id: str | None = None


class Member(Protocol):
    """A member's machine. Times are seconds of a clock that never jumps."""

    handover: Handover | None
    failure: ClientError | None
    """The member has stopped for good."""
    owned: Partitions
    wants_metadata: bool
    """It was told of topics that it does not know."""

    @property
    def identity(self) -> Identity | None:
        """None while it is no member."""

    @property
    def is_settled(self) -> bool:
        """A member, with all that it was given."""

    def subscribe(self, topics: frozenset[str]) -> None: ...

    def learn_topics(self, counts: Mapping[str, int], ids: Mapping[UUID, str]) -> None:
        """The newest metadata."""

    def user_came(self) -> None:
        """The user asks for records, and waits for them perhaps."""

    def user_went(self, now_s: float) -> None:
        """With records or without. It has to come back before the poll interval is over."""

    def handover_began(self) -> None: ...

    def handed_over(self) -> None: ...

    def next_step(self, now_s: float) -> Step: ...

    def heard(self, ask: Ask, outcome: Outcome, now_s: float) -> None: ...

    def farewell(self) -> Ask | None:
        """What to send when the consumer is closed."""
