"""A member of a classic group: joins, receives or computes the assignment, and rejoins when the group changes.

Pure: `next_step` returns the next request, and `heard` takes its outcome. There are two ways to rejoin:

- eager: revoke all partitions, then join;
- cooperative (if all assignors are): join with the owned partitions, learn which to revoke, then join again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from uuid import UUID

from ottla.client.groups.assignors import assign
from ottla.client.groups.classic_formats import (
    NO_GENERATION,
    MemberSubscription,
    encode_assignment,
    encode_subscription,
)
from ottla.client.groups.member import MOVING, MemberCore
from ottla.client.groups.settings import GroupSettings
from ottla.client.groups.steps import (
    Ask,
    CountPartitions,
    ErrorReply,
    Handover,
    HeartbeatStep,
    Identity,
    Join,
    Joined,
    Leave,
    MemberIdReply,
    Outcome,
    PartitionCounts,
    Partitions,
    Step,
    SuccessReply,
    Sync,
    Synced,
    Wait,
)
from ottla.protocol.model.errors import ErrorCode

SUBSCRIPTION_CHANGED = "its subscription has changed"


class Phase(Enum):
    """The state of a member."""

    OUT = "is not a member and does not try to join"
    GIVING_UP = "gives up partitions before it joins"
    JOINING = "joins"
    COUNTING = "leads and requests the topics of all members"
    SYNCING = "waits for its assignment"
    TAKING = "has an assignment that the application has not taken yet"
    STABLE = "is a member with its assignment"
    LEAVING = "leaves, because the application has not polled for too long"


class ClassicMember(MemberCore):
    """The state machine of a classic member."""

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self.phase = Phase.OUT
        self.member_id = ""
        self.generation = NO_GENERATION
        self._owned_generation = NO_GENERATION
        self._protocol = ""
        self._members: Mapping[str, MemberSubscription] = {}
        """The members of the group while this member leads it; empty otherwise."""
        self._counts: Mapping[str, int] | None = None
        """The partition counts that the leader used for the last assignment."""
        self._asked_topics: frozenset[str] | None = None
        """The topics of the last JoinGroup."""
        self._assignments: tuple[tuple[str, bytes], ...] = ()
        self._rejoin_reason: str | None = None
        self._join_reason = "the consumer has started"
        self._beat_due_s = 0.0

    @property
    def identity(self) -> Identity | None:
        if self.generation == NO_GENERATION:
            return None
        return Identity(self.member_id, self.generation, self.settings.instance_id)

    @property
    def is_settled(self) -> bool:
        """Whether this is a member with its whole assignment."""
        return self.phase is Phase.STABLE

    @property
    def watched_topics(self) -> frozenset[str]:
        """The topics of the whole group while this member leads it."""
        return frozenset[str]().union(*(each.topics for each in self._members.values()))

    # Calls from the user's side.

    def subscribe(self, topics: frozenset[str]) -> None:
        """Joins the group, or rejoins it if the topics changed."""
        first = self.topics is None
        if topics == self.topics:
            return
        self.topics = topics
        if first:
            self.phase = Phase.JOINING
        else:
            self._rejoin_reason = SUBSCRIPTION_CHANGED

    def learn_topics(self, counts: Mapping[str, int], ids: Mapping[UUID, str]) -> None:
        """Rejoins if the leader sees new partitions. Partitions that seem to be gone may come back and are ignored."""
        del ids
        watched = {topic: counts.get(topic, 0) for topic in self.watched_topics}
        if self._counts is None:
            self._counts = watched
        elif any(count > self._counts.get(topic, 0) for topic, count in watched.items()):
            self._rejoin_reason = "topics of the group have changed"

    def handed_over(self) -> None:
        """Continues after the user's side finished a handover."""
        done = self._finish_handover()
        if self._lost_meanwhile:
            self._lose()
        elif self.phase is Phase.GIVING_UP:
            self.phase = Phase.JOINING
        elif self.phase is Phase.TAKING:
            self._settle()
            if done.give_up:
                self._rejoin_reason = "it has revoked partitions"

    def _wake_up(self) -> None:
        if self.phase is Phase.OUT:
            self._join_reason = "the consumer polls again"
            self._give_up_or_join()

    # Requests.

    def next_step(self, now_s: float) -> Step:
        """Returns the next request, or how long to wait."""
        if self.failure is not None or self.topics is None:
            return Wait()
        if self._poll_is_overdue(now_s) and not self._asleep:
            self._fall_asleep()
        if self._rejoin_reason is not None and not self._handing and self.phase in (Phase.TAKING, Phase.STABLE):
            self._begin_rejoin(self._rejoin_reason)
        match self.phase:
            case Phase.LEAVING:
                return Leave(self.member_id, "max_poll_interval_ms has passed")
            case Phase.JOINING:
                self._asked_topics = self.topics
                return Join(self.member_id, self._join_protocols(), self._join_reason)
            case Phase.COUNTING:
                return CountPartitions(self.watched_topics)
            case Phase.SYNCING:
                return Sync(self.member_id, self.generation, self._protocol, self._assignments)
            case Phase.GIVING_UP | Phase.TAKING | Phase.STABLE if self.generation != NO_GENERATION:
                if now_s >= self._beat_due_s:
                    return HeartbeatStep(self.member_id, self.generation)
                return Wait(self._until_s(self._beat_due_s))
        return Wait()

    def farewell(self) -> Ask | None:
        """Returns the LeaveGroup request. None for a static member: its partitions wait until its session expires."""
        if not self.member_id or self.settings.instance_id is not None:
            return None
        return Leave(self.member_id, "the consumer is being closed")

    def _join_protocols(self) -> tuple[tuple[str, bytes], ...]:
        assert self.topics is not None
        mine = MemberSubscription(self.topics, self.owned, self._owned_generation)
        data = encode_subscription(mine, self.settings.rack)
        return tuple((name, data) for name in self.settings.assignors)

    # Replies.

    def heard(self, ask: Ask, outcome: Outcome, now_s: float) -> None:
        """Takes the outcome of a request."""
        if isinstance(ask, Leave):
            self._has_left()
            return
        match outcome:
            case MemberIdReply(member_id):
                self.member_id = member_id
            case Joined():
                self._on_joined(outcome)
            case PartitionCounts(counts):
                self._on_counted(counts)
            case Synced(assigned):
                self._beat_due_s = now_s + self.settings.heartbeat_interval_s
                self._on_assigned(assigned)
            case ErrorReply():
                self._on_refused(ask, outcome, now_s)
            case SuccessReply():
                self._beat_due_s = now_s + self.settings.heartbeat_interval_s

    def _on_joined(self, joined: Joined) -> None:
        self.member_id = joined.member_id
        self.generation = joined.generation
        self._protocol = joined.protocol
        self._rejoin_reason = None if self.topics == self._asked_topics else SUBSCRIPTION_CHANGED
        self._assignments = ()
        self._members = joined.members if joined.is_leader else {}
        self._counts = None
        self.phase = Phase.COUNTING if joined.is_leader and not joined.skip_assignment else Phase.SYNCING

    def _on_counted(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        given = assign(self._protocol, self._members, counts)
        self._assignments = tuple((member, encode_assignment(partitions)) for member, partitions in given.items())
        self.phase = Phase.SYNCING

    def _on_assigned(self, assigned: Partitions) -> None:
        give_up, take = self.owned - assigned, assigned - self.owned
        if give_up or take:
            self.handover = Handover(give_up, take)
            self.phase = Phase.TAKING
        else:
            self._settle()

    def _settle(self) -> None:
        self._owned_generation = self.generation
        self.phase = Phase.STABLE

    def _on_refused(self, ask: Ask, refusal: ErrorReply, now_s: float) -> None:
        error = refusal.error
        if error in MOVING:
            return
        if error is ErrorCode.rebalance_in_progress:
            self._on_rebalance(ask, now_s)
        elif error in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            if error is ErrorCode.unknown_member_id:
                self.member_id = ""
            self._join_reason = f"the coordinator returned {error.name.upper()}"
            self._lose()
        else:
            self._lose()
            self.phase = Phase.OUT
            self._fail(refusal)

    def _on_rebalance(self, ask: Ask, now_s: float) -> None:
        if isinstance(ask, Sync):
            self._join_reason = "the group has changed again"
            self.phase = Phase.JOINING
        elif isinstance(ask, HeartbeatStep):
            self._beat_due_s = now_s + self.settings.heartbeat_interval_s
            if self.phase in (Phase.TAKING, Phase.STABLE):
                self._rejoin_reason = "the group is rebalancing"

    def _begin_rejoin(self, reason: str) -> None:
        """Rejoins and discards an assignment that the user's side has not begun to take."""
        self._rejoin_reason = None
        self._join_reason = reason
        self.handover = None
        self._give_up_or_join()

    def _give_up_or_join(self) -> None:
        if self.handover is None and (give_up := self._to_give_up()):
            self.handover = Handover(give_up)
        self.phase = Phase.JOINING if self.handover is None else Phase.GIVING_UP

    def _to_give_up(self) -> Partitions:
        if not self.settings.cooperative:
            return self.owned
        assert self.topics is not None
        return frozenset(at for at in self.owned if at.topic not in self.topics)

    def _lose(self) -> None:
        """Ends the membership: the partitions may belong to others now."""
        self.generation = self._owned_generation = NO_GENERATION
        self._members = {}
        self._rejoin_reason = None
        self._lose_owned()
        self.phase = Phase.JOINING if self.handover is None else Phase.GIVING_UP

    def _fall_asleep(self) -> None:
        self._asleep = True
        is_static = self.settings.instance_id is not None
        member_id = self.member_id
        self._lose()
        self.phase = Phase.LEAVING if member_id and not is_static else Phase.OUT

    def _has_left(self) -> None:
        self.member_id = ""
        self.phase = Phase.OUT
        if not self._asleep:  # the user came back meanwhile
            self._wake_up()
