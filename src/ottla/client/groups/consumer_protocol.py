"""A member of a consumer-protocol group (KIP-848): the coordinator assigns, and heartbeats carry everything.

Pure: `next_step` returns the next request, and `heard` takes its outcome. A heartbeat reports what changed since the
last one that was answered. The reply may contain a new assignment. The member then revokes partitions that are not in
it, takes the new ones, and reports that with the next heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from uuid import UUID

from ottla.client.consumer.types import TopicPartition
from ottla.client.groups.member import MOVING, MemberCore
from ottla.client.groups.settings import GroupSettings
from ottla.client.groups.steps import (
    Ask,
    ErrorReply,
    Handover,
    Identity,
    NoReply,
    Outcome,
    Report,
    ReportReply,
    Step,
    Wait,
)
from ottla.protocol.model.errors import ErrorCode

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2

ById = frozenset[tuple[UUID, int]]
NONE_BY_ID: ById = frozenset()
_FENCED = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})


class Phase(Enum):
    """The state of a member."""

    OUT = "is not a member and does not try to join"
    GIVING_UP = "has lost its membership, and the application has not given up its partitions yet"
    JOINING = "joins"
    MEMBER = "is a member"
    LEAVING = "leaves, because the application has not polled for too long"


class ConsumerMember(MemberCore):
    """The state machine of a consumer-protocol member."""

    def __init__(self, settings: GroupSettings, member_id: str) -> None:
        super().__init__(settings)
        self.phase = Phase.OUT
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self._target: ById | None = None
        self._owned_by_id: ById = NONE_BY_ID
        self._handing_by_id: ById = NONE_BY_ID
        self._names: Mapping[UUID, str] = {}
        self._told_topics: frozenset[str] | None = None
        self._told_owned: ById | None = None
        self._tell_all = True
        self._due_s = 0.0

    @property
    def identity(self) -> Identity | None:
        if self.epoch <= JOIN_EPOCH:
            return None
        return Identity(self.member_id, self.epoch, self.settings.instance_id)

    @property
    def is_settled(self) -> bool:
        """Whether this is a member with its whole assignment."""
        return self.phase is Phase.MEMBER and self._target == self._owned_by_id and not self._handing

    # Calls from the user's side.

    def subscribe(self, topics: frozenset[str]) -> None:
        """Joins the group, or reports the changed topics with the next heartbeat."""
        if self.topics is None:
            self.phase = Phase.JOINING
        self.topics = topics

    def learn_topics(self, counts: Mapping[str, int], ids: Mapping[UUID, str]) -> None:
        """Learns the names of assigned topics."""
        del counts
        self._names = {**self._names, **ids}
        self._reconcile()

    def handed_over(self) -> None:
        """Continues after the user's side finished a handover."""
        self._finish_handover()
        self._owned_by_id = self._handing_by_id
        if self._lost_meanwhile:
            self._lose()
        elif self.phase is Phase.GIVING_UP:
            self.phase = Phase.JOINING
        else:
            self._reconcile()

    def _wake_up(self) -> None:
        if self.phase is Phase.OUT:
            self.phase = Phase.JOINING if self.handover is None else Phase.GIVING_UP

    # Requests.

    def next_step(self, now_s: float) -> Step:
        """Returns the next request, or how long to wait."""
        if self.failure is not None or self.topics is None:
            return Wait()
        if self._poll_is_overdue(now_s) and not self._asleep:
            self._fall_asleep()
        match self.phase:
            case Phase.LEAVING:
                return self._leaving()
            case Phase.JOINING:
                return Report(self.member_id, JOIN_EPOCH, self.topics, NONE_BY_ID, is_full=True)
            case Phase.MEMBER:
                report = self._report()
                has_news = report.is_full or report.subscribed is not None or report.owned is not None
                if has_news or now_s >= self._due_s:
                    return report
                return Wait(self._until_s(self._due_s))
        return Wait()

    def _report(self) -> Report:
        """Reports owned partitions only while they are not about to change, and takes none before the reply.

        When a member reports what it owns, the coordinator assumes that it has nothing else, not even partitions that
        it was just assigned.
        """
        owned = None
        if not self._handing and (self._tell_all or self._owned_by_id != self._told_owned):
            owned = self._owned_by_id
            self.handover = None
        subscribed = self.topics if self._tell_all or self.topics != self._told_topics else None
        return Report(self.member_id, self.epoch, subscribed, owned, is_full=self._tell_all)

    def farewell(self) -> Ask | None:
        """Returns the heartbeat that leaves the group, or None if this is no member."""
        return self._leaving() if self.epoch > JOIN_EPOCH else None

    def _leaving(self) -> Report:
        is_static = self.settings.instance_id is not None
        return Report(self.member_id, STATIC_LEAVE_EPOCH if is_static else LEAVE_EPOCH)

    # Replies.

    def heard(self, ask: Ask, outcome: Outcome, now_s: float) -> None:
        """Takes the outcome of a request."""
        assert isinstance(ask, Report)
        if ask.epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            self._has_left()
            return
        match outcome:
            case ReportReply():
                self._on_reported(ask, outcome, now_s)
            case ErrorReply(error=error) if error in _FENCED:
                self._lose()
            case ErrorReply(error=error) if error not in MOVING:
                self._lose()
                self.phase = Phase.OUT
                self._fail(outcome)
            case ErrorReply() | NoReply():
                self._tell_all = True  # the reply is lost or useless, so report everything again
                self._reconcile()

    def _on_reported(self, ask: Report, reported: ReportReply, now_s: float) -> None:
        self.member_id = reported.member_id or self.member_id
        self.epoch = reported.epoch
        self.phase = Phase.MEMBER
        self._due_s = now_s + reported.interval_s
        self._tell_all = False
        if ask.subscribed is not None:
            self._told_topics = ask.subscribed
        if ask.owned is not None:
            self._told_owned = ask.owned
        if reported.assigned is not None:
            self._target = reported.assigned
        self._reconcile()

    def _reconcile(self) -> None:
        """Plans the handover from the owned to the assigned partitions, as far as the topic names are known."""
        if self.phase is not Phase.MEMBER or self._handing or self._tell_all or self._target is None:
            return
        known = frozenset(each for each in self._target if each[0] in self._names)
        self.wants_metadata = len(known) < len(self._target)
        self.handover = None
        if known != self._owned_by_id:
            give_up, take = self._owned_by_id - known, known - self._owned_by_id
            self.handover = Handover(self._named(give_up), self._named(take))
            self._handing_by_id = known

    def _named(self, partitions: ById) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(self._names[topic], index) for topic, index in partitions)

    def _lose(self) -> None:
        self.epoch = JOIN_EPOCH
        self._target = None
        self._told_topics = self._told_owned = None
        self._tell_all = True
        self.wants_metadata = False
        self._lose_owned()
        if not self._handing:
            self._handing_by_id = NONE_BY_ID
        self.phase = Phase.JOINING if self.handover is None else Phase.GIVING_UP

    def _fall_asleep(self) -> None:
        self._asleep = True
        was_member = self.epoch > JOIN_EPOCH
        self._lose()
        self.phase = Phase.LEAVING if was_member else Phase.OUT

    def _has_left(self) -> None:
        self.phase = Phase.OUT
        if not self._asleep:  # the user came back meanwhile
            self._wake_up()
