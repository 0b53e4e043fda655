"""Members of one group on simulated hosts: the clients of the property tests with a network between them and their
coordinator, and the invariants of the group.

    one owner       a partition has one owner in a generation, and at any time among the current members
    generations     a generation has one set of members, and each of them one assignment
    alive           no member is removed that sent a request a moment ago
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ottla.machines.groups.placement import partition_of
from ottla.machines.groups.replies import CommitReply, FetchOffsetsReply, Reply
from ottla.machines.groups.requests import (
    CommitOffsets,
    ConsumerHeartbeat,
    FetchOffsets,
    Heartbeat,
    OffsetToCommit,
    Request,
    TopicsChanged,
)
from ottla.machines.groups.tables import Tables
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.model.ids import TopicId
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld
from tests.properties.groups_clients import GROUP, SESSION_MS, ClassicClient, Client, ConsumerClient
from tests.simulation.groups_commits import Commits
from tests.simulation.groups_wire import CoordinatorConnection
from tests.simulation.violations import Violation

if TYPE_CHECKING:
    from tests.properties.groups_world import World

TOPIC = "orders"
ALIVE_MS = SESSION_MS - 5000
"""A deposed coordinator may reply for a moment; the next one starts its session timers when it takes over."""
REFUSED = (
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
    ErrorCode.stale_member_epoch,
    ErrorCode.fenced_member_epoch,
    ErrorCode.fenced_instance_id,
    ErrorCode.rebalance_in_progress,
    ErrorCode.group_id_not_found,
    ErrorCode.unknown_topic_or_partition,
)
"""Errors after which the commit is certainly not written."""


class Claim(NamedTuple):
    """The identity under which a member commits, and its partitions."""

    member_id: str
    generation: int
    owned: tuple[int, ...]


@dataclass(slots=True)
class Member:
    """A client and its connections to the coordinator."""

    client: Client
    rng: Random
    asking: CoordinatorConnection
    offsets: CoordinatorConnection
    now: Claim | None = None
    past: Claim | None = None
    """Its claim in the previous generation, if that was another one."""
    heard_as: str = ""
    heard_s: float = float("-inf")
    """When the last successful request with this member id was sent."""


class MemberGroup:
    """A group; implements the `World` that the clients use."""

    def __init__(
        self,
        name: str,
        kinds: list[type[Client]],
        world: SimWorld,
        servers: list[str],
        partition_count: int,
        tables: Callable[[str], Tables | None],
        seed: int,
    ) -> None:
        self.name = name
        self.partition_count = partition_count
        self.random = Random(f"{seed}/{name}/clients")
        self.topic_id: TopicId | None = None
        self.is_over = False
        self.is_quiet = False
        """Set when nobody leaves, restarts or commits any more."""
        self._world = world
        self._tables = tables
        self._tickets, self._numbers = count(1), count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._given: dict[tuple[int, str], frozenset[tuple[str, int]]] = {}
        self._led: dict[int, frozenset[str]] = {}
        self.commits = {index: Commits(f"{name}, {TOPIC}-{index}") for index in range(partition_count)}
        self._acting: Member | None = None
        self.members: list[Member] = []
        for place, kind in enumerate(kinds):
            # Every third member is static.
            instance_id = f"{name}-{place}" if place % 3 == 2 else None
            rng = Random(f"{seed}/{name}/{place}")
            asking, offsets = (CoordinatorConnection(servers, name, rng) for _ in range(2))
            client = kind(cast("World", self), place, instance_id)
            self.members.append(Member(client, rng, asking, offsets))

    # -- the interface of World ------------------------------------------------------------------------------------

    @property
    def topics(self) -> TopicsChanged:
        assert self.topic_id is not None
        return TopicsChanged(topics={TOPIC: (self.topic_id, self.partition_count)})

    @property
    def coordinator(self) -> SimpleNamespace:
        """Tells a client whether its group is classic. If that is unknown, it is reported as not classic."""
        tables = self._tables(self.name)
        is_classic = tables is not None and self.name not in tables.consumer
        return SimpleNamespace(tables=SimpleNamespace(consumer={} if is_classic else {GROUP: None}))

    def fresh_id(self) -> str:
        return f"{self.name}-{next(self._numbers)}"

    def send(self, client: Client | None, request: Request) -> int:
        assert self._acting is not None
        ticket = next(self._tickets)
        named: Request = replace(cast(Any, request), group=self.name)
        self._spawn(self._ask(self._acting, client, ticket, named))
        return ticket

    def led_in(self, generation: int, members: frozenset[str]) -> None:
        known = self._led.setdefault(generation, members)
        if known != members:
            raise Violation("generations", f"{self.name}: {generation} has the members {known}, and {members}")

    def given_in(self, generation: int, who: str, partitions: frozenset[tuple[str, int]]) -> None:
        known = self._given.setdefault((generation, who), partitions)
        if known != partitions:
            raise Violation("generations", f"{self.name}: {who} has {known} in {generation}, and then {partitions}")
        for (other_generation, other), theirs in self._given.items():
            if other_generation == generation and other != who and theirs & partitions:
                text = f"{self.name}: {who} and {other} both have {theirs & partitions} in generation {generation}"
                raise Violation("one owner", text)

    # -- lifecycle of a member -------------------------------------------------------------------------------------

    def start(self, hosts: list[SimHost]) -> None:
        for place, member in enumerate(self.members):
            hosts[place % len(hosts)].spawn(self._live(member))

    async def _live(self, member: Member) -> None:
        await asyncio.sleep(member.rng.random() * 2)
        while not self.is_over:
            self._change(member, 1.0 if self.is_quiet else member.rng.random())
            with self._as(member):
                member.client.act()
            self._check_owners()
            if not self.is_quiet and member.rng.random() < 0.7:
                await self._commit(member)
            if member.rng.random() < 0.2:
                await self._read(member)
            await asyncio.sleep(member.rng.choice((0.1, 0.5, 1.0)))
        with self._as(member):
            member.client.leave()

    def _change(self, member: Member, chance: float) -> None:
        client = member.client
        with self._as(member):
            if not client.is_alive or chance < 0.01:
                client.restart()
            elif chance < 0.02:
                client.leave()
            elif chance < 0.03 and self.name == "moving":
                client.leave()
                kind = ConsumerClient if isinstance(client, ClassicClient) else ClassicClient
                member.client = kind(cast("World", self), client.place, client.instance_id)

    @contextmanager
    def _as(self, member: Member) -> Iterator[None]:
        before, self._acting = self._acting, member
        try:
            yield
        finally:
            self._acting = before

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.fail(self.name, f"{error}", error)

    async def _ask(self, member: Member, client: Client | None, ticket: int, request: Request) -> None:
        sent_s = self._world.now_s
        reply = await member.asking.ask(request)
        if client is None or client.ticket != ticket:
            return
        with self._as(member):
            if reply is None:
                client.give_up()
                return
            self._check_alive(member, request, reply, sent_s)
            client.take(ticket, reply)
        self._check_owners()

    # -- offsets ---------------------------------------------------------------------------------------------------

    async def _commit(self, member: Member) -> None:
        """Commits an offset, sometimes under its previous identity, as a process does that was paused."""
        client = member.client
        self._note_claim(member)
        claim = member.past if member.rng.random() < 0.15 else member.now
        if claim is None or not claim.owned or not client.is_alive or claim.generation < 0:
            return
        index, number = member.rng.choice(claim.owned), next(self._numbers)
        request = CommitOffsets(
            group=self.name,
            offsets=(OffsetToCommit(topic=TOPIC, partition=index, offset=number),),
            generation=claim.generation,
            member_id=claim.member_id,
            instance_id=client.instance_id if isinstance(client, ClassicClient) else None,
        )
        commits = self.commits[index]
        commit = commits.sent(number, claim.generation, self._world.now_s)
        reply = await member.offsets.ask(request)
        if isinstance(reply, CommitReply):
            if reply.errors[0] is ErrorCode.none:
                commits.taken(commit, self._world.now_s)
            elif reply.errors[0] in REFUSED:
                commits.refused(commit, self._world.now_s)

    def _note_claim(self, member: Member) -> None:
        client = member.client
        now = Claim(client.member_id, client.generation, tuple(sorted(index for _, index in client.owned_ids)))
        if member.now is not None and member.now.owned and member.now.generation != now.generation:
            member.past = member.now
        member.now = now

    async def _read(self, member: Member) -> None:
        sent_s = self._world.now_s
        request = FetchOffsets(group=self.name, topics=((TOPIC, tuple(range(self.partition_count))),))
        reply = await member.offsets.ask(request)
        if isinstance(reply, FetchOffsetsReply) and reply.error is ErrorCode.none:
            for each in reply.offsets:
                self.commits[each.partition].read(None if each.value is None else each.value.offset, sent_s)

    @property
    def acknowledged(self) -> int:
        return sum(commits.acknowledged for commits in self.commits.values())

    # -- invariants ------------------------------------------------------------------------------------------------

    def _check_alive(self, member: Member, request: Request, reply: Reply, sent_s: float) -> None:
        if not isinstance(request, Heartbeat | ConsumerHeartbeat):
            return
        error = cast(ErrorCode, reply.error)  # type: ignore[union-attr]  # both have one
        if error is ErrorCode.none:
            member.heard_as, member.heard_s = member.client.member_id, sent_s
        elif error is ErrorCode.unknown_member_id and member.heard_as == member.client.member_id:
            silent_s = self._world.now_s - member.heard_s
            if silent_s * 1000 < ALIVE_MS:
                text = f"{self.name}: {member.heard_as} is out, {silent_s:.3f} s after it was heard"
                raise Violation("alive", text)

    def _check_owners(self) -> None:
        """Checks ownership in a group of the consumer protocol, by the coordinator's member list."""
        tables = self._tables(self.name)
        group = tables.consumer.get(self.name) if tables is not None else None
        if group is None:
            return
        owners: dict[tuple[TopicId, int], Client] = {}
        for member in self.members:
            client = member.client
            if client.member_id in group.members and client.is_valid(group.current_of(client.member_id).epoch):
                for each in client.owned_ids:
                    if each in owners:
                        text = f"{self.name}: {owners[each].member_id} and {client.member_id} both have {each[1]}"
                        raise Violation("one owner", text)
                    owners[each] = client

    @property
    def is_settled(self) -> bool:
        """Returns whether every member has its share and all partitions are assigned."""
        clients = [member.client for member in self.members]
        if not all(client.is_alive and client.is_settled for client in clients):
            return False
        shares = [client.owned_ids for client in clients]
        return sum(map(len, shares)) == self.partition_count == len(frozenset().union(*shares))

    def state_text(self) -> str:
        lines = [f"{self.name}, in partition {partition_of(self.name, 3)} of 3:"]
        for member in self.members:
            client = member.client
            owned = sorted(index for _, index in client.owned_ids)
            state = "settled" if client.is_settled else "not settled"
            lines.append(
                f"  {type(client).__name__} {client.member_id} {client.generation} {owned} {state} {client.ticket}"
            )
        return "\n".join(lines)
