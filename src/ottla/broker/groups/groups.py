"""The groups of this broker, as handlers see them: whose coordinator it is, and a way to ask it.

asked = await broker.groups.ask(Heartbeat(group="g", ...), "g")      a reply of machines/groups/replies, or Refused
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.groups.alone import FailuresAlone
from ottla.broker.groups.led_shard import LedShard, State, Surroundings
from ottla.broker.groups.offsets_topic import OffsetsTopic
from ottla.broker.groups.settings import group_config
from ottla.broker.groups.topic_news import TopicNews
from ottla.machines.groups.placement import OFFSETS_TOPIC, partition_of
from ottla.machines.groups.replies import Reply
from ottla.machines.groups.requests import Request
from ottla.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from ottla.broker.broker import Broker, Node
    from ottla.broker.partition import Partition
    from ottla.broker.topics import Topic

NEWS_INTERVAL_MS = 100.0
"""Coordinators hear of topics at once, but not more often than this."""

RELOAD_AFTER_MS = 500.0
"""After something went wrong here, though the partition is still led here."""


class CommittedOffset(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int
    committed_ms: int


class Groups:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._topic = OffsetsTopic(broker)
        self._news = TopicNews(broker.topics, self._sees_all_topics)
        self._news_are_due = False
        self._next_news_ms = 0.0
        self._shards: dict[int, LedShard] = {}
        """By the index of the partition."""
        self._loading = asyncio.Lock()
        self._failures = FailuresAlone(self.on_role)
        self._is_stopped = False

    # -- what handlers ask ------------------------------------------------------------------------------------

    async def coordinator_of(self, group: str) -> Node | Refused:
        """Creates `__consumer_offsets` if it is not there. Refused: COORDINATOR_NOT_AVAILABLE."""
        topic = await self.ensure_topic()
        if isinstance(topic, Refused):
            return _not_available(topic.message or topic.error.name)
        index = _index_of(topic, group)
        leader = topic.layouts[index].leader if index is not None else -1
        found = next((node for node in self._broker.nodes() if node.id == leader), None)
        return found or _not_available(f"partition {index} of {OFFSETS_TOPIC} has no leader at the moment")

    async def ensure_topic(self) -> Topic | Refused:
        """`__consumer_offsets`, made if it is not there."""
        return await self._topic.ensure()

    async def ask(self, request: Request, group: str) -> Reply | Refused:
        """Hands a request to the coordinator of that group and waits for the answer, as long as it takes.

        Refused: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE; UNKNOWN_SERVER_ERROR if the
        request met a bug.
        """
        asked = self.ask_soon(request, group)
        return asked if isinstance(asked, Refused) else await asked

    def ask_soon(self, request: Request, group: str) -> asyncio.Future[Reply] | Refused:
        """The same, for those that can use an answer that is there at once."""
        shard = self._shard_of(group)
        return shard if isinstance(shard, Refused) else shard.ask(request)

    async def ask_all(self, request: Request) -> list[Reply] | Refused:
        """Of every partition that this broker leads, in their order."""
        if self._is_stopped:
            return _not_available("the broker is stopping")
        asked = [shard.ask(request) for _, shard in sorted(self._shards.items())]
        refused = next((each for each in asked if isinstance(each, Refused)), None)
        if refused is not None:
            return refused
        replies = await asyncio.gather(*(each for each in asked if not isinstance(each, Refused)))
        return next((each for each in replies if isinstance(each, Refused)), replies)

    def fresh_id(self) -> str:
        """For a new member."""
        return str(self._broker.new_id())

    def matching_topics(self, regex: str) -> tuple[str, ...] | Refused:
        """The names that match as a whole, sorted. Refused: INVALID_REGULAR_EXPRESSION."""
        self._news.refresh()
        return self._news.matching(regex)

    def committed_offsets(self) -> Iterator[CommittedOffset]:
        """Of the partitions that are led here. For measurements: the last of them may not be acknowledged yet."""
        for shard in self._serving():
            for group, topics in shard.machine.tables.offsets.committed.items():
                for topic, partitions in topics.items():
                    for index, value in partitions.items():
                        yield CommittedOffset(group, topic, index, value.offset, value.committed_ms)

    def group_counts(self) -> Mapping[str, int]:
        """How many groups there are in each state, of the partitions that are led here."""
        counts: Counter[str] = Counter()
        for shard in self._serving():
            counts.update(shard.machine.states())
        return counts

    # -- what the broker tells --------------------------------------------------------------------------------

    def on_role(self, partition: Partition) -> None:
        """The partition may have another leader, another epoch, or no log any more."""
        if partition.topic.name != OFFSETS_TOPIC:
            return
        shard = self._shards.get(partition.index)
        if shard is not None and (shard.partition is not partition or not shard.is_current):
            shard.end("it is led no more, or anew")
        self._lead(partition)

    def on_topics_changed(self, deleted: Iterable[str] = ()) -> None:
        """Topics are there, or have more partitions, or are gone."""
        self._news.changed()
        for shard in self._shards.values():
            shard.note_deleted(deleted)
        if not self._news_are_due:
            self._news_are_due = True
            delay_ms = self._next_news_ms - self._clock.monotonic_ms()
            if delay_ms > 0:
                self._clock.call_later(delay_ms, self._tell_news)
            else:
                self._clock.call_soon(self._tell_news)

    def stop(self) -> None:
        """Whoever waits is sent away; nobody is taken in any more."""
        self._is_stopped = True
        for shard in list(self._shards.values()):
            shard.end("the broker stops")

    # -- shards -----------------------------------------------------------------------------------------------

    def _lead(self, partition: Partition) -> None:
        is_here = partition.is_led_here and not partition.deleted and partition.log.failed is None
        if self._is_stopped or not is_here or partition.index in self._shards:
            return
        if partition.events is None:
            partition.events = self._failures
        around = Surroundings(self._clock, group_config(self._broker.config), self._news, self._loading)
        shard = self._shards[partition.index] = LedShard(partition, around, self._on_ended)
        self._clock.call_soon(shard.begin)

    def _on_ended(self, shard: LedShard) -> None:
        partition = shard.partition
        if self._shards.get(partition.index) is shard:
            del self._shards[partition.index]
        if not self._is_stopped and shard.is_current:
            self._clock.call_later(RELOAD_AFTER_MS, partial(self._lead, partition))

    def _shard_of(self, group: str) -> LedShard | Refused:
        topic = self._broker.topics.get(OFFSETS_TOPIC)
        index = _index_of(topic, group) if topic is not None else None
        if topic is None or index is None:
            return Refused(ErrorCode.not_coordinator)
        shard = self._shards.get(index)
        if shard is not None:
            return shard
        if self._is_stopped:
            return _not_available("the broker is stopping")
        partition = topic.partition(index)
        if partition is None or not partition.is_led_here:
            return Refused(ErrorCode.not_coordinator)
        return _not_available(f"partition {index} of {OFFSETS_TOPIC} cannot be used at the moment")

    def _serving(self) -> Iterator[LedShard]:
        return (shard for _, shard in sorted(self._shards.items()) if shard.state is State.SERVING)

    # -- news of topics ---------------------------------------------------------------------------------------

    def _sees_all_topics(self) -> bool:
        cluster = self._broker.cluster
        return cluster is None or not cluster.membership.image.unreadable()

    def _tell_news(self) -> None:
        self._news_are_due = False
        self._news.refresh()
        self._tell_one(list(self._serving()))

    def _tell_one(self, shards: list[LedShard]) -> None:
        """One in a turn of the loop: each of them looks at all topics."""
        self._next_news_ms = self._clock.monotonic_ms() + NEWS_INTERVAL_MS
        if shards:
            shards.pop().on_news()
            self._clock.call_soon(partial(self._tell_one, shards))


def _index_of(topic: Topic, group: str) -> int | None:
    """None if not all of the topic is known here: the group's place depends on the number of partitions."""
    count = topic.partition_count
    if count == 0 or (topic.spread is not None and topic.spread[-1].partition != count - 1):
        return None
    return partition_of(group, count)


def _not_available(why: str) -> Refused:
    return Refused(ErrorCode.coordinator_not_available, why)
