"""A group coordinator under faults, with realistic clients, and invariants checked at each step.

The log has a high watermark: replies are sent when it reaches them, and a failover loses some or all batches above it.
The records of a step are one batch: all of them are there, or none.
"""

from __future__ import annotations

import re
from itertools import chain, count
from random import Random
from uuid import UUID

from ottla.machines.coordinators import Instant
from ottla.machines.groups import encoding
from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.coordinator import GroupCoordinator
from ottla.machines.groups.records import Assignment, Unknown, Unreadable
from ottla.machines.groups.replies import CommitReply, FetchOffsetsReply, Reply
from ottla.machines.groups.requests import CommitOffsets, FetchOffsets, OffsetToCommit, Request, TopicsChanged
from ottla.machines.groups.shard import Answer, Step
from ottla.machines.groups.tables import Tables
from ottla.protocol.model.ids import TopicId
from tests.properties.groups_clients import ClassicClient, Client, ConsumerClient

GROUP = "g"
TOPIC = TopicId(UUID(int=1))
DAY_MS = 24 * 60 * 60_000
CONFIG = GroupConfig(
    initial_rebalance_delay_ms=1_000,
    new_member_join_timeout_ms=30_000,
    consumer_session_timeout_ms=10_000,
    offsets_retention_check_interval_ms=DAY_MS,
)


class World:
    def __init__(self, kinds: list[type[Client]], random: Random) -> None:
        self.random = random
        self.partition_count = 5
        self.elapsed_ms = 0
        self.deadline_ms: int | None = None
        self.log: list[list[tuple[bytes, bytes | None]]] = []
        """Batches."""
        self.watermark = 0
        self.committed = Tables()
        """The state of the log below the high watermark."""
        self._held: list[tuple[int, Answer]] = []
        self._tickets = count(1)
        self._waiting: dict[int, Client | None] = {}
        self._numbers = count(1)
        self._commits: dict[int, int] = {}
        self._reads: dict[int, int] = {}
        self.acknowledged = 0
        self.floor = 0
        """The highest committed generation or epoch."""
        self.given: dict[tuple[int, str], frozenset[tuple[str, int]]] = {}
        """The assignment of each member of each classic generation, by its instance id if it has one."""
        self.led: dict[int, frozenset[str]] = {}
        """The members of each classic generation."""
        self.coordinator = GroupCoordinator(CONFIG)
        self.clients: list[Client] = []
        self._load()
        for place, kind in enumerate(kinds):
            self.add_client(kind, place)

    # -- the coordinator and its log -------------------------------------------------------------------------------

    @property
    def now(self) -> Instant:
        return Instant(self.elapsed_ms, 10**12 + self.elapsed_ms)

    @property
    def topics(self) -> TopicsChanged:
        topics = {"orders": (TOPIC, self.partition_count)}
        return TopicsChanged(topics=topics, regexes=self._matching(self.coordinator.regexes()))

    def _matching(self, regexes: set[str]) -> dict[str, tuple[str, ...]]:
        return {regex: ("orders",) if re.fullmatch(regex, "orders") else () for regex in regexes}

    def resolve(self) -> None:
        """Resolves regular expressions after their heartbeats; this may be late, or lost."""
        matching = self._matching(self.coordinator.unresolved_regexes())
        self._take(self.coordinator.regexes_resolved(matching, self.now))

    def replayed(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(CONFIG)
        for key, value in chain.from_iterable(self.log):
            coordinator.replay(key, value)
        assert not coordinator.unreadable
        return coordinator

    def compacted(self) -> GroupCoordinator:
        """Returns the state after compaction of part of the log: the last record of each key, without tombstones."""
        records = list(chain.from_iterable(self.log))
        clean = self.random.randint(0, len(records))
        last = {key: place for place, (key, _) in enumerate(records[:clean])}
        kept = [records[place] for place in sorted(last.values()) if records[place][1] is not None]
        coordinator = GroupCoordinator(CONFIG)
        for key, value in kept + records[clean:]:
            coordinator.replay(key, value)
        return coordinator

    def _load(self) -> None:
        self.coordinator = self.replayed()
        self._take(self.coordinator.loaded(self.topics, self.now))

    def _take(self, step: Step) -> None:
        if step.records:
            self.log.append([encoding.encode(appended.record) for appended in step.records])
        self._held += [(len(self.log), answer) for answer in step.answers]
        self.deadline_ms = step.deadline_ms

    def send(self, client: Client | None, request: Request) -> int:
        ticket = next(self._tickets)
        self._waiting[ticket] = client
        self._take(self.coordinator.handle(ticket, request, self.now))
        return ticket

    def fail_over(self, kept: int) -> None:
        """Keeps that many of the batches above the high watermark."""
        assert self.coordinator.tables == self.replayed().tables, "what it knew is what its log says"
        assert self.coordinator.tables == self.compacted().tables, "and what is left of it by compaction"
        del self.log[self.watermark + kept :]
        self._held.clear()
        for client in {client for client in self._waiting.values() if client is not None}:
            client.give_up()
        self._waiting.clear()
        self._commits.clear()
        self._reads.clear()
        self._load()

    def commit(self, batches: int | None = None) -> None:
        """Advances the high watermark to the end or by that many batches. The effects may append more."""
        end = len(self.log) if batches is None else min(len(self.log), self.watermark + batches)
        for key, value in chain.from_iterable(self.log[self.watermark : end]):
            record = encoding.decode(key, value)
            assert not isinstance(record, Unknown | Unreadable)
            self.committed.apply(record)
        self.watermark = end
        self._check_numbers()
        released = [answer for position, answer in self._held if position <= end]
        self._held = [each for each in self._held if each[0] > end]
        for answer in released:
            self._deliver(answer.ticket, answer.reply)

    def _deliver(self, ticket: int, reply: Reply) -> None:
        client = self._waiting.pop(ticket)
        if ticket in self._commits:
            number = self._commits.pop(ticket)
            assert isinstance(reply, CommitReply)
            if reply.errors[0].name == "none":
                self.acknowledged = max(self.acknowledged, number)
        elif ticket in self._reads:
            self._check_read(reply, self._reads.pop(ticket))
        elif client is not None:
            client.take(ticket, reply)

    def wait(self, duration_ms: int) -> None:
        until_ms = self.elapsed_ms + duration_ms
        while self.deadline_ms is not None and self.deadline_ms <= until_ms:
            self.elapsed_ms = max(self.elapsed_ms, self.deadline_ms)
            self._take(self.coordinator.tick(self.now))
        self.elapsed_ms = until_ms

    # -- clients and administrators --------------------------------------------------------------------------------

    def add_client(self, kind: type[Client], place: int) -> None:
        # Every third one is a static member.
        instance_id = f"i{place}" if place % 3 == 2 else None
        self.clients.append(kind(self, place, instance_id))

    def switch(self, place: int) -> None:
        """Restarts the client with the other protocol."""
        old = self.clients[place]
        old.leave()
        kind = ConsumerClient if isinstance(old, ClassicClient) else ClassicClient
        self.clients[place] = kind(self, place, old.instance_id)

    def fresh_id(self) -> str:
        return f"f{next(self._numbers)}"

    def commit_offset(self, client: Client) -> None:
        number = next(self._numbers)
        request = CommitOffsets(
            group=GROUP,
            offsets=(OffsetToCommit(topic="orders", partition=0, offset=number),),
            generation=client.generation,
            member_id=client.member_id,
            instance_id=client.instance_id if isinstance(client, ClassicClient) else None,
        )
        self._commits[self.send(None, request)] = number

    def read_offset(self) -> None:
        request = FetchOffsets(group=GROUP, topics=(("orders", (0,)),), require_stable=True)
        self._reads[self.send(None, request)] = self.acknowledged

    def grow(self) -> None:
        self.partition_count += 1
        self._take(self.coordinator.topics_changed(self.topics, self.now))

    # -- invariants ------------------------------------------------------------------------------------------------

    def committed_offset(self) -> int:
        value = self.committed.offsets.of(GROUP).get("orders", {}).get(0)
        return 0 if value is None else value.offset

    def _check_read(self, reply: Reply, at_least: int) -> None:
        assert isinstance(reply, FetchOffsetsReply)
        value = reply.offsets[0].value
        offset = 0 if value is None else value.offset
        assert at_least <= offset <= self.committed_offset(), "a read sees what is committed, and all of it"

    def _check_numbers(self) -> None:
        classic, consumer = self.committed.classic.get(GROUP), self.committed.consumer.get(GROUP)
        number = max(0 if classic is None else classic.generation, 0 if consumer is None else consumer.epoch)
        if classic is not None or consumer is not None:
            assert number >= self.floor, "generations and epochs only grow"
            self.floor = number

    def led_in(self, generation: int, members: frozenset[str]) -> None:
        """A leader received the list of members."""
        assert self.led.setdefault(generation, members) == members, "a generation has one set of members"

    def given_in(self, generation: int, who: str, partitions: frozenset[tuple[str, int]]) -> None:
        """A member received its assignment in a classic group."""
        known = self.given.setdefault((generation, who), partitions)
        assert known == partitions, "one assignment a generation"
        for (other_generation, other), theirs in self.given.items():
            assert other_generation != generation or other == who or not theirs & partitions, "each partition once"

    def check(self) -> None:
        assert self.committed_offset() >= self.acknowledged, "no acknowledged commit is lost"
        group = self.committed.consumer.get(GROUP)
        if group is not None:
            owners: dict[tuple[TopicId, int], Client] = {}
            for client in self.clients:
                if client.member_id in group.members and client.is_valid(group.current_of(client.member_id).epoch):
                    for each in client.owned_ids:
                        assert each not in owners, f"{each} has two owners"
                        owners[each] = client

    def all_partitions(self) -> Assignment:
        return frozenset((TOPIC, index) for index in range(self.partition_count))

    # -- the end ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Without further faults, every live client gets its share."""
        for _ in range(60):
            for client in self.clients:
                client.act()
                self.commit()
                self.resolve()
            self.wait(2_000)
            self.commit()
            self.check()
        alive = [client for client in self.clients if client.is_alive]
        if alive:
            assert all(client.is_settled for client in alive), [vars(client) for client in alive]
            shares = [client.owned_ids for client in alive]
            assert frozenset[tuple[TopicId, int]]().union(*shares) == self.all_partitions()
            assert sum(map(len, shares)) == self.partition_count
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert self.coordinator.tables == self.replayed().tables == self.compacted().tables

    def end(self) -> None:
        """All members leave: nothing is left of them, and after the retention time nothing of the group."""
        for client in self.clients:
            client.kill()
        self.wait(120_000)
        self.wait(10 * DAY_MS)
        self.commit()
        assert self.coordinator.waiting == 0
        assert self.coordinator.tables == Tables() == self.committed
        shard = self.coordinator._shard
        assert shard.classic == {}
        assert len(shard.timers) == len(shard.timers._heap) == len(shard.timers._queued) == 1
