"""The groups of this broker, as handlers see them: which groups it coordinates, and a way to ask their coordinators.

asked = await broker.groups.ask(Heartbeat(group="g", ...), "g")      a reply of machines/groups/replies, or Refused
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from ottla.broker.clock_sleep import sleep
from ottla.broker.context import BrokerContext
from ottla.broker.coordinators.led_shards import LedShards, index_of
from ottla.broker.groups.led_shard import GroupShardContext, GuardedCommit, LedShard
from ottla.broker.groups.settings import group_config, offsets_topic_plan
from ottla.broker.groups.topic_changes import TopicChanges
from ottla.broker.metadata import Metadata
from ottla.broker.partition.batch_validation import NO_GUARD
from ottla.broker.partition.partition import Partition
from ottla.broker.partition.transaction_verification import PAUSES_MS, VerificationRequest, Verifier, is_early
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.machines.groups.replies import Reply
from ottla.machines.groups.requests import CommitOffsets
from ottla.machines.transactions.records import TopicPartition
from ottla.protocol.model.errors import ErrorCode, Refused

NEWS_INTERVAL_MS = 100.0
"""Coordinators are notified of topic changes at once, but not more often than this."""


class CommittedOffset(NamedTuple):
    """An offset that a group has committed for a partition."""

    group: str
    topic: str
    partition: int
    offset: int
    committed_ms: int


class Groups(LedShards[LedShard]):
    """The group coordinators of this broker."""

    def __init__(self, context: BrokerContext, metadata: Metadata, verifier: Verifier) -> None:
        super().__init__(context, metadata, OFFSETS_TOPIC, offsets_topic_plan)
        self._verifier = verifier
        self._news = TopicChanges(context.topics, metadata.sees_all_topics)
        self._news_are_due = False
        self._next_news_ms = 0.0

    def _new_shard(self, partition: Partition) -> LedShard:
        around = GroupShardContext(self._clock, group_config(self._context.config), self._news, self._loading)
        return LedShard(partition, around, self._on_ended)

    # -- for handlers -----------------------------------------------------------------------------------------

    def partition_of(self, group: str) -> int | None:
        """Returns the partition that holds a group's offsets, or None while it is unknown."""
        topic = self._context.topics.get(OFFSETS_TOPIC)
        return None if topic is None else index_of(topic, group)

    async def commit_in_transaction(
        self, commit: CommitOffsets, transactional_id: str, transaction_version: int
    ) -> Reply | Refused:
        """Commits offsets that take effect when the transaction is committed. If they are the transaction's first in
        the group's partition, the transaction coordinator is asked first (KIP-890)."""
        outcome: Reply | Refused = Refused(ErrorCode.concurrent_transactions)
        for pause_ms in PAUSES_MS:
            outcome, is_final = await self._commit_once(commit, transactional_id, transaction_version, pause_ms)
            if is_final:
                break
        return outcome

    async def _commit_once(
        self, commit: CommitOffsets, transactional_id: str, transaction_version: int, pause_ms: float
    ) -> tuple[Reply | Refused, bool]:
        """Returns the reply and whether it is final. If the previous transaction is still being completed, this waits
        for the pause first."""
        shard = self._shard_of(commit.group)
        guard = shard if isinstance(shard, Refused) else shard.guard_for(commit)
        if isinstance(shard, Refused) or isinstance(guard, Refused):
            assert isinstance(guard, Refused)
            return guard, True
        if guard != NO_GUARD:
            assert commit.producer_id is not None
            here = TopicPartition(OFFSETS_TOPIC, shard.partition.index)
            asked = VerificationRequest(
                transactional_id, commit.producer_id, commit.producer_epoch, frozenset({here}), transaction_version
            )
            errors = await self._verifier.verify(asked)
            error = errors.get(here, ErrorCode.none)
            if is_early(asked, errors.values()):
                await sleep(self._clock, pause_ms)
                return Refused(error), False
            if error is not ErrorCode.none:
                return Refused(error, "rejected by the transaction coordinator"), True
        outcome: Reply | Refused = await self.ask(GuardedCommit(commit, guard, transaction_version), commit.group)
        has_lost_guard = isinstance(outcome, Refused) and outcome.error is ErrorCode.invalid_txn_state
        return outcome, transaction_version < 2 or not has_lost_guard

    def fresh_id(self) -> str:
        """Returns an id for a new member."""
        return str(self._context.new_id())

    def committed_offsets(self) -> Iterator[CommittedOffset]:
        """Iterates over the committed offsets in the partitions led here, for metrics. The latest may not be
        acknowledged yet."""
        for shard in self._serving():
            for group, topics in shard.machine.tables.offsets.committed.items():
                for topic, partitions in topics.items():
                    for index, value in partitions.items():
                        yield CommittedOffset(group, topic, index, value.offset, value.committed_ms)

    def group_counts(self) -> Mapping[str, int]:
        """Returns the number of groups in each state, in the partitions led here."""
        counts: Counter[str] = Counter()
        for shard in self._serving():
            counts.update(shard.machine.states())
        return counts

    # -- for the broker ---------------------------------------------------------------------------------------

    def on_topics_changed(self, deleted: Iterable[str] = ()) -> None:
        """Notes that topics were created, deleted or got more partitions, and schedules a notification of the
        coordinators."""
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

    # -- topic changes ----------------------------------------------------------------------------------------

    def _tell_news(self) -> None:
        self._news_are_due = False
        self._news.refresh()
        self._tell_one(list(self._serving()))

    def _tell_one(self, shards: list[LedShard]) -> None:
        """Notifies one coordinator per iteration of the event loop: each of them goes through all topics."""
        self._next_news_ms = self._clock.monotonic_ms() + NEWS_INTERVAL_MS
        if shards:
            shards.pop().on_news()
            self._clock.call_soon(partial(self._tell_one, shards))
