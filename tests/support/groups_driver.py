"""A group coordinator with a log and a clock, isolated from everything else: appended records are committed at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from ottla.machines.coordinators import Instant
from ottla.machines.groups import encoding
from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.consumer_protocol import Subscription, write_subscription
from ottla.machines.groups.coordinator import GroupCoordinator
from ottla.machines.groups.records import NOTHING, Assignment
from ottla.machines.groups.replies import (
    CommitReply,
    ConsumerHeartbeatReply,
    FetchOffsetsReply,
    HeartbeatReply,
    JoinReply,
    LeaveReply,
    Reply,
    SyncReply,
)
from ottla.machines.groups.requests import (
    CommitOffsets,
    ConsumerHeartbeat,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    Request,
    SyncGroup,
    TopicsChanged,
)
from ottla.machines.groups.shard import Step
from ottla.machines.groups.tables import Tables
from ottla.protocol.model.ids import TopicId

T = TypeVar("T")

WALL_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
TOPICS = {name: (TopicId(UUID(int=number)), 4) for number, name in enumerate(("orders", "bills", "users"), 1)}


def subscribe(*topics: str, version: int = 0) -> bytes:
    return write_subscription(Subscription(version, topics))


class Groups:
    def __init__(self, config: GroupConfig | None = None, topics: dict[str, tuple[TopicId, int]] | None = None) -> None:
        self.config = config or GroupConfig()
        self.topics = dict(TOPICS if topics is None else topics)
        self.log: list[tuple[bytes, bytes | None, int | None]] = []
        self.markers: dict[int, list[tuple[int, bool]]] = {}
        self.answers: dict[int, Reply] = {}
        self.elapsed_ms = 0
        self.deadline_ms: int | None = None
        self._tickets = count(1)
        self.fail_over()

    @property
    def now(self) -> Instant:
        return Instant(self.elapsed_ms, WALL_MS + self.elapsed_ms)

    @property
    def tables(self) -> Tables:
        return self.coordinator.tables

    def reloaded(self) -> GroupCoordinator:
        """Returns another coordinator that has replayed the log."""
        coordinator = GroupCoordinator(self.config)
        for offset in range(len(self.log) + 1):
            for producer_id, is_committed in self.markers.get(offset, []):
                coordinator.replay_marker(producer_id, is_committed=is_committed)
            if offset < len(self.log):
                coordinator.replay(*self.log[offset])
        return coordinator

    def fail_over(self) -> None:
        self.coordinator = self.reloaded()
        self._take(self.coordinator.loaded(TopicsChanged(topics=self.topics), self.now))

    def send(self, request: Request) -> int:
        """Sends a command and returns its ticket."""
        ticket = next(self._tickets)
        self._take(self.coordinator.handle(ticket, request, self.now))
        return ticket

    def ask(self, request: Request) -> Reply:
        """Sends a command that is answered at once and returns the reply."""
        ticket = self.send(request)
        assert ticket in self.answers, f"{request} has to wait"
        return self.answers.pop(ticket)

    def wait(self, duration_ms: int) -> None:
        until_ms = self.elapsed_ms + duration_ms
        while self.deadline_ms is not None and self.deadline_ms <= until_ms:
            self.elapsed_ms = max(self.elapsed_ms, self.deadline_ms)
            self._take(self.coordinator.tick(self.now))
        self.elapsed_ms = until_ms

    def change_topics(
        self,
        topics: dict[str, tuple[TopicId, int]],
        deleted: frozenset[str] = frozenset(),
        regexes: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.topics = dict(topics)
        change = TopicsChanged(topics=self.topics, deleted=deleted, regexes=regexes or {})
        self._take(self.coordinator.topics_changed(change, self.now))

    def resolve(self, regexes: dict[str, tuple[str, ...]]) -> None:
        assert self.coordinator.unresolved_regexes() == regexes.keys()
        self._take(self.coordinator.regexes_resolved(regexes, self.now))
        assert not self.coordinator.has_unresolved_regexes

    def complete(self, producer_id: int, *, is_committed: bool) -> None:
        self.markers.setdefault(len(self.log), []).append((producer_id, is_committed))
        self._take(self.coordinator.complete_transaction(producer_id, is_committed=is_committed, now=self.now))

    def _take(self, step: Step) -> None:
        for appended in step.records:
            key, value = encoding.encode(appended.record)
            assert encoding.decode(key, value) == appended.record
            self.log.append((key, value, appended.producer_id))
        for answer in step.answers:
            assert answer.ticket not in self.answers, "answered twice"
            self.answers[answer.ticket] = answer.reply
        self.deadline_ms = step.deadline_ms

    # -- offsets ---------------------------------------------------------------------------------------------------

    def commit(self, group: str, offset: int, topic: str = "orders", partition: int = 0, **more: Any) -> str:
        """Returns the name of the error."""
        to_commit = OffsetToCommit(topic=topic, partition=partition, offset=offset)
        request = replace(CommitOffsets(group=group, offsets=(to_commit,)), **more)
        reply = self.expect(CommitReply, self.ask(request))
        return reply.errors[0].name

    def committed(self, group: str, topic: str = "orders", partition: int = 0) -> int | None:
        reply = self.expect(FetchOffsetsReply, self.ask(FetchOffsets(group=group, topics=((topic, (partition,)),))))
        value = reply.offsets[0].value
        return None if value is None else value.offset

    # -- the classic protocol --------------------------------------------------------------------------------------

    def join_request(self, group: str = "g", member_id: str = "", **more: Any) -> JoinGroup:
        request = JoinGroup(
            group=group,
            member_id=member_id,
            protocols=(("range", subscribe("orders")),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            client_id="c",
            client_host="/127.0.0.1",
            fresh_id=str(next(self._tickets)),
        )
        return replace(request, **more)

    def join(self, group: str = "g", member_id: str = "", **more: Any) -> int:
        """Returns the ticket of a pending JoinGroup. A new dynamic member first obtains its member id."""
        request = self.join_request(group, member_id, **more)
        if not member_id and request.needs_known_id and request.instance_id is None:
            reply = self.expect(JoinReply, self.ask(request))
            assert reply.error.name == "member_id_required"
            request = replace(request, member_id=reply.member_id)
        return self.send(request)

    def joined(self, ticket: int) -> JoinReply:
        return self.expect(JoinReply, self.answers.pop(ticket))

    def synced(self, ticket: int) -> SyncReply:
        return self.expect(SyncReply, self.answers.pop(ticket))

    def sync(self, joined: JoinReply, group: str = "g", **assignments: bytes) -> int:
        named = tuple((key.replace("_", "-"), value) for key, value in assignments.items())
        return self.send(
            SyncGroup(group=group, generation=joined.generation, member_id=joined.member_id, assignments=named)
        )

    def beat(self, joined: JoinReply, group: str = "g", instance_id: str | None = None) -> str:
        request = Heartbeat(
            group=group, generation=joined.generation, member_id=joined.member_id, instance_id=instance_id
        )
        return self.expect(HeartbeatReply, self.ask(request)).error.name

    def leave(self, *members: LeavingMember, group: str = "g") -> list[str]:
        reply = self.expect(LeaveReply, self.ask(LeaveGroup(group=group, members=members)))
        return [member.error.name for member in reply.members]

    def assemble(self, size: int = 1, group: str = "g", **more: Any) -> list[JoinReply]:
        """Creates a stable group of that many members, the leader first. Each has its member id as its assignment."""
        tickets = [self.join(group, **more) for _ in range(size)]
        self.wait(DELAY_MS * 2)
        members = sorted((self.joined(ticket) for ticket in tickets), key=lambda each: each.leader != each.member_id)
        self.settle(members, group)
        return members

    def settle(self, members: list[JoinReply], group: str = "g") -> None:
        """All members sync, the leader first."""
        assignments = tuple((member.member_id, member.member_id.encode()) for member in members)
        for member in members:
            request = SyncGroup(
                group=group,
                generation=member.generation,
                member_id=member.member_id,
                assignments=assignments if member.leader == member.member_id else (),
            )
            reply = self.expect(SyncReply, self.ask(request))
            assert reply.error.name == "none", reply
            assert reply.assignment == member.member_id.encode()

    def state(self, group: str = "g") -> str:
        found = self.coordinator._shard.classic.get(group)
        return "Dead" if found is None else found.state.value

    @staticmethod
    def expect(kind: type[T], reply: object) -> T:
        assert isinstance(reply, kind), reply
        return reply


@dataclass
class Consumer:
    """A member of the consumer protocol: it follows its assignment and reports the partitions it owns."""

    groups: Groups
    member_id: str
    topics: tuple[str, ...] = ("orders",)
    group: str = "g"
    instance_id: str | None = None
    epoch: int = 0
    owned: Assignment = NOTHING
    error: str = "none"
    more: dict[str, Any] = field(default_factory=dict)
    """Other fields of its first request."""

    def join(self, **more: Any) -> Consumer:
        self.owned = NOTHING
        request = ConsumerHeartbeat(
            group=self.group,
            member_id=self.member_id,
            member_epoch=0,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_names=self.topics,
            owned=NOTHING,
            client_id="c",
            client_host="/127.0.0.1",
        )
        self.take(self.ask(replace(request, **{**self.more, **more})))
        return self

    def beat(self, **more: Any) -> Consumer:
        """Sends a heartbeat with the owned partitions, then adopts the assignment in the reply."""
        self.take(self.ask(self.request(**more)))
        return self

    def request(self, **more: Any) -> ConsumerHeartbeat:
        request = ConsumerHeartbeat(
            group=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            owned=self.owned,
            client_id="c",
            client_host="/127.0.0.1",
        )
        return replace(request, **more)

    def leave(self, epoch: int = -1) -> str:
        return self.ask(self.request(member_epoch=epoch)).error.name

    def ask(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatReply:
        return self.groups.expect(ConsumerHeartbeatReply, self.groups.ask(request))

    def take(self, reply: ConsumerHeartbeatReply) -> None:
        self.error = reply.error.name
        if self.error == "none":
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.owned = reply.assignment

    @property
    def partitions(self) -> list[tuple[str, int]]:
        names = {topic_id: name for name, (topic_id, _) in self.groups.topics.items()}
        return sorted((names[topic_id], index) for topic_id, index in self.owned)
