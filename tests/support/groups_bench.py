"""Requests to the coordinators of a simulated broker or cluster, without sockets and wire formats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar, cast

from ottla.broker.endpoints import Node
from ottla.machines.groups.placement import OFFSETS_TOPIC, partition_of
from ottla.machines.groups.replies import (
    CommitReply,
    ConsumerHeartbeatReply,
    FetchOffsetsReply,
    JoinReply,
    Reply,
    SyncReply,
)
from ottla.machines.groups.requests import (
    CommitOffsets,
    ConsumerHeartbeat,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    OffsetToCommit,
    Request,
    SyncGroup,
)
from ottla.protocol.model.errors import ErrorCode, Refused
from tests.support.groups_driver import subscribe
from tests.support.sim_broker import BrokerBench
from tests.support.sim_cluster import ClusterBench

T = TypeVar("T")
PROPERTIES = {
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": "10000",
}


def error_of(reply: Reply) -> ErrorCode:
    """Returns the error of a refusal, or of the first part of a reply."""
    if isinstance(reply, CommitReply):
        return reply.errors[0]
    assert not isinstance(reply, tuple) or hasattr(reply, "error")
    return cast(ErrorCode, reply.error)  # type: ignore[union-attr]  # all other replies have one


def commit(group: str, offset: int, topic: str = "orders", partition: int = 0) -> CommitOffsets:
    return CommitOffsets(group=group, offsets=(OffsetToCommit(topic=topic, partition=partition, offset=offset),))


def join(group: str, member_id: str = "", *, fresh_id: str = "1", session_timeout_ms: int = 10_000) -> JoinGroup:
    return JoinGroup(
        group=group,
        member_id=member_id,
        protocols=(("range", subscribe("orders")),),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=60_000,
        client_id="client",
        fresh_id=fresh_id,
        needs_known_id=False,
    )


def sync(group: str, joined: JoinReply, assignment: bytes = b"all") -> SyncGroup:
    return SyncGroup(
        group=group,
        generation=joined.generation,
        member_id=joined.member_id,
        assignments=((joined.member_id, assignment),) if joined.leader == joined.member_id else (),
    )


def heartbeat(group: str, joined: JoinReply) -> Heartbeat:
    return Heartbeat(group=group, generation=joined.generation, member_id=joined.member_id)


def first_heartbeat(group: str, *, topics: tuple[str, ...] = ("orders",), member_id: str = "m") -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        group=group,
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_names=topics,
        owned=frozenset(),
    )


def offsets_of(reply: Reply) -> dict[tuple[str, int], int]:
    assert isinstance(reply, FetchOffsetsReply), reply
    return {(each.topic, each.partition): each.value.offset for each in reply.offsets if each.value is not None}


class GroupsAlone(BrokerBench):
    """One broker."""

    def __init__(self, **properties: str) -> None:
        settings = {**{name.replace(".", "_"): value for name, value in PROPERTIES.items()}, **properties}
        super().__init__(seed=3, **settings)

    async def ready(self) -> None:
        """Starts the broker, creates a topic, and waits until every group has a coordinator."""
        await self.create("orders", partitions=4)
        assert isinstance(await self.until(self.broker.groups.coordinator_of("any")), Node)
        await self.until(self.loaded())

    async def loaded(self) -> None:
        answers: list[Reply] | Refused = Refused(ErrorCode.coordinator_load_in_progress)
        while isinstance(answers, Refused):
            await asyncio.sleep(0)
            answers = await self.broker.groups.ask_all(FetchOffsets(group="any"))

    async def ask(self, request: Request, group: str = "g") -> Reply:
        return await self.until(self.broker.groups.ask(request, group))

    async def asking(self, request: Request, group: str = "g") -> asyncio.Task[Reply]:
        """Sends a request to the broker without waiting for the reply."""
        task = asyncio.ensure_future(self.broker.groups.ask(request, group))
        await asyncio.sleep(0)
        return task

    async def committed(self, group: str = "g") -> dict[tuple[str, int], int]:
        return offsets_of(await self.ask(FetchOffsets(group=group), group))

    async def member(self, group: str = "g") -> JoinReply:
        """Creates a classic group with one member that has its assignment."""
        joined = await self.ask(join(group), group)
        assert isinstance(joined, JoinReply), joined
        assert joined.error is ErrorCode.none
        synced = await self.ask(sync(group, joined), group)
        assert isinstance(synced, SyncReply), synced
        assert synced.assignment == b"all"
        return joined


class GroupsCluster(ClusterBench):
    """Three brokers; requests go straight to their `groups` objects."""

    def ready(self) -> None:
        self.run(self.create("orders", partitions=4))
        assert isinstance(self.on(1, self.broker(1).groups.coordinator_of("g")), Node)
        for index in range(3):
            self.until_in_sync(OFFSETS_TOPIC, index)
        self.until(lambda: self.coordinator("g") != -1)

    def on(self, number: int, work: Awaitable[T], timeout_s: float = 60) -> T:
        """Runs a coroutine as a task of that broker's host."""
        task = self.start(number, work)
        self.until(task.done, timeout_s)
        return task.result()

    def start(self, number: int, work: Awaitable[T]) -> asyncio.Task[T]:
        async def wait() -> T:
            return await work

        return self.host(number).spawn(wait())

    def index_of(self, group: str) -> int:
        return partition_of(group, int(PROPERTIES["offsets.topic.num.partitions"]))

    def coordinator(self, group: str = "g") -> int:
        """Returns the running broker whose coordinator is loaded, or -1."""
        leader = self.leader(OFFSETS_TOPIC, self.index_of(group))
        if leader == -1:
            return -1
        asked = self.on(leader, self.broker(leader).groups.ask(FetchOffsets(group=group), group))
        return -1 if isinstance(asked, Refused) else leader

    def ask_at(self, number: int, request: Request, group: str = "g") -> Reply:
        reply: Reply = self.on(number, self.broker(number).groups.ask(request, group))
        return reply

    def get(self, request: Request, group: str = "g", timeout_s: float = 60) -> Reply:
        """Waits for the coordinator and sends it the request."""
        answers: list[Reply] = []

        def is_answered() -> bool:
            leader = self.leader(OFFSETS_TOPIC, self.index_of(group))
            if leader == -1:
                return False
            reply = self.ask_at(leader, request, group)
            if not isinstance(reply, Refused):
                answers.append(reply)
            return bool(answers)

        deadline = self.world.now_s + timeout_s
        while not is_answered():
            assert self.world.now_s < deadline, "no coordinator answers"
            self.world.run_for(0.1)
        return answers[0]

    def committed(self, group: str = "g") -> dict[tuple[str, int], int]:
        return offsets_of(self.get(FetchOffsets(group=group), group))

    def member(self, group: str = "g") -> JoinReply:
        joined = self.get(join(group), group)
        assert isinstance(joined, JoinReply), joined
        synced = self.get(sync(group, joined), group)
        assert isinstance(synced, SyncReply), synced
        return joined

    def consumer(self, group: str = "g") -> ConsumerHeartbeatReply:
        """Adds a member of the consumer protocol."""
        reply = self.get(first_heartbeat(group), group)
        assert isinstance(reply, ConsumerHeartbeatReply), reply
        assert reply.error is ErrorCode.none
        return reply
