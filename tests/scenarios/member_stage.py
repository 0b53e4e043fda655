"""The stage of scenarios about a group member: its requests, the replies it gets, and its user's actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.client.consumer.types import TopicPartition
from ottla.client.groups.classic import ClassicMember
from ottla.client.groups.classic_formats import MemberSubscription, decode_assignment, decode_subscription
from ottla.client.groups.consumer_protocol import ConsumerMember
from ottla.client.groups.settings import DEFAULT_ASSIGNORS, GroupSettings
from ottla.client.groups.steps import (
    Ask,
    CountPartitions,
    ErrorReply,
    Handover,
    HeartbeatStep,
    Join,
    Joined,
    Leave,
    MemberIdReply,
    NoReply,
    Outcome,
    PartitionCounts,
    Partitions,
    Report,
    ReportReply,
    Step,
    SuccessReply,
    Sync,
    Synced,
    Wait,
)
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from tests.scenarios.stages import Command

TOPIC_IDS = {name: UUID(int=number) for number, name in enumerate("abcdef", 1)}
TOPIC_NAMES = {topic: name for name, topic in TOPIC_IDS.items()}


class MemberStage:
    """member protocol= assignors= static= | subscribe topics= | topics a=4 b=2 | after s= | farewell

    Replies: id | joined generation= as= members=m:a,b;n:a owned=m:a0,a1 | counted a=4 | synced parts=a0,a1
    | reported epoch= parts= | done | refused error= | unanswered

    Its user: polls (hands over, and waits) | goes (works on what it got) | begins (a handover, and does not end) | ends

    Each command shows what the user has to hand over, and the next request.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._member: ClassicMember | ConsumerMember = ClassicMember(GroupSettings("g"))
        self._asked: Ask | None = None
        self._handing: Handover | None = None

    def perform(self, command: Command) -> str:
        act: Callable[[Command], str | None] = getattr(self, command.name.replace("-", "_"))
        shown = act(command)
        return self._shown() if shown is None else f"{shown}\n{self._shown()}"

    def member(self, command: Command) -> None:
        options = command.options
        settings = GroupSettings(
            "g",
            options.get("static"),
            options.get("protocol", "classic"),
            options["assignors"].split(",") if "assignors" in options else DEFAULT_ASSIGNORS,
        )
        is_consumer = settings.protocol == "consumer"
        self._member = ConsumerMember(settings, "m") if is_consumer else ClassicMember(settings)
        self._member.user_went(self._now_s)

    def subscribe(self, command: Command) -> None:
        self._member.subscribe(frozenset(command.options["topics"].split(",")))

    def topics(self, command: Command) -> None:
        counts = {name: int(count) for name, count in command.options.items()}
        self._member.learn_topics(counts, {TOPIC_IDS[name]: name for name in counts})

    def after(self, command: Command) -> None:
        self._now_s += float(command.options["s"])

    def farewell(self, command: Command) -> str:
        farewell = self._member.farewell()
        return "says nothing" if farewell is None else f"says {_step_text(farewell)}"

    # Replies.

    def _hear(self, outcome: Outcome) -> None:
        assert self._asked is not None, "nothing was asked"
        asked, self._asked = self._asked, None
        self._member.heard(asked, outcome, self._now_s)

    def id(self, command: Command) -> None:
        self._hear(MemberIdReply(next(iter(command.options))))

    def joined(self, command: Command) -> None:
        options = command.options
        owned = {member: _partitions(parts) for member, _, parts in _triples(options.get("owned", ""))}
        generation = command.number("generation", 1)
        members = {
            member: MemberSubscription(frozenset(topics.split(",")), owned.get(member, frozenset()), generation - 1)
            for member, _, topics in _triples(options.get("members", ""))
        }
        protocol = options.get("protocol", "range")
        self._hear(Joined(generation, options["as"], protocol, bool(members), members, command.has("skip")))

    def counted(self, command: Command) -> None:
        self._hear(PartitionCounts({name: int(count) for name, count in command.options.items()}))

    def synced(self, command: Command) -> None:
        self._hear(Synced(_partitions(command.options.get("parts", ""))))

    def reported(self, command: Command) -> None:
        told = command.options.get("parts")
        assigned = None if told is None else frozenset((TOPIC_IDS[topic], at) for topic, at in _partitions(told))
        self._hear(ReportReply("m", command.number("epoch", 1), 5.0, assigned))

    def done(self, command: Command) -> None:
        self._hear(SuccessReply())

    def refused(self, command: Command) -> None:
        self._hear(ErrorReply(ErrorCode[command.options["error"]]))

    def unanswered(self, command: Command) -> None:
        self._hear(NoReply())

    # Its user.

    def polls(self, command: Command) -> str:
        shown = []
        self._member.user_came()
        while self._member.handover is not None:
            handover = self._begin()
            shown.append(f"the user does: {_handover_text(handover)}")
            self._member.handed_over()
            self._ask_next()
        return "\n".join(shown)

    def goes(self, command: Command) -> None:
        self._member.user_went(self._now_s)

    def begins(self, command: Command) -> str:
        self._member.user_came()
        return f"the user begins: {_handover_text(self._begin())}"

    def ends(self, command: Command) -> None:
        self._member.handed_over()

    def _begin(self) -> Handover:
        assert self._member.handover is not None, "there is nothing to hand over"
        self._member.handover_began()
        return self._member.handover

    # Output.

    def _ask_next(self) -> Step:
        step = self._member.next_step(self._now_s)
        self._asked = None if isinstance(step, Wait) else step
        return step

    def _shown(self) -> str:
        step = self._ask_next()
        if self._member.failure is not None:
            return f"  stopped: {self._member.failure}"
        waiting = "" if self._member.handover is None else f"; the user is to: {_handover_text(self._member.handover)}"
        if isinstance(step, Wait):
            until = "" if step.until_s is None else f" until {step.until_s:g} s"
            return f"  waits{until}{waiting}"
        return f"  sends {_step_text(step)}{waiting}"


def _triples(text: str) -> Iterable[tuple[str, str, str]]:
    return (each.partition(":") for each in text.split(";") if each)


def _partitions(text: str) -> Partitions:
    return frozenset(TopicPartition(each[0], int(each[1:])) for each in text.split(",") if each)


def _text(partitions: Iterable[tuple[str, int]]) -> str:
    return " ".join(f"{topic}{index}" for topic, index in sorted(partitions)) or "nothing"


def _handover_text(handover: Handover) -> str:
    parts = []
    if handover.give_up:
        parts.append(f"{'lose' if handover.lost else 'give up'} {_text(handover.give_up)}")
    if handover.take:
        parts.append(f"take {_text(handover.take)}")
    return ", ".join(parts)


def _step_text(step: Ask) -> str:
    match step:
        case Join():
            mine = decode_subscription(step.protocols[0][1])
            owned = f" with {_text(mine.owned)} of generation {mine.generation}" if mine.owned else ""
            return f"JoinGroup as {step.member_id or 'nobody'} for {','.join(sorted(mine.topics))}{owned}"
        case CountPartitions():
            return f"a question for the partitions of {','.join(sorted(step.topics))}"
        case Sync():
            given = ", ".join(f"{member} gets {_text(decode_assignment(data))}" for member, data in step.assignments)
            return f"SyncGroup of generation {step.generation}{': ' if given else ''}{given}"
        case HeartbeatStep():
            return f"Heartbeat of generation {step.generation}"
        case Leave():
            return f"LeaveGroup as {step.member_id}: {step.reason}"
        case Report():
            told = [] if step.subscribed is None else [f"subscribed to {','.join(sorted(step.subscribed))}"]
            if step.owned is not None:
                told.append(f"has {_text((TOPIC_NAMES[topic], index) for topic, index in step.owned)}")
            return f"a heartbeat of epoch {step.epoch}{': ' if told else ''}{', '.join(told)}"
