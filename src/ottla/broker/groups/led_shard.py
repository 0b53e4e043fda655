"""One partition of `__consumer_offsets` while this broker leads it: the part that is specific to groups.

**Offsets in a transaction** are a batch of its producer and are validated like a producer's batch: against the
partition's state of the transaction, with a guard if they are its first (`judging`). The marker that ends the
transaction is appended like any other, and the machine applies it to the offsets atomically on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ottla.broker.coordinators import led_shard
from ottla.broker.coordinators.led_shard import ROOM_BYTES, Decide, State, Ticket
from ottla.broker.coordinators.log_replay import Replayable
from ottla.broker.groups.batches import batch_of
from ottla.broker.groups.topic_changes import TopicChanges
from ottla.broker.partition.partition import Partition
from ottla.machines.coordinators import Instant
from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.coordinator import GroupCoordinator
from ottla.machines.groups.requests import (
    JOIN_EPOCH,
    CommitOffsets,
    ConsumerHeartbeat,
    DescribeConsumerGroup,
    DescribeGroup,
    FetchOffsets,
    ListGroups,
    TopicsChanged,
)
from ottla.machines.transactions.partition_table import NO_SEQUENCE, Marker
from ottla.ports import Clock
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.reach import branch

_EARLY_MARKER = branch("a marker arrives while a coordinator loads", __name__)

__all__ = ["ROOM_BYTES", "GroupShardContext", "GuardedCommit", "LedShard", "State"]


class GroupShardContext(NamedTuple):
    """What all shards of a broker share."""

    clock: Clock
    config: GroupConfig
    news: TopicChanges
    loading: asyncio.Lock


class GuardedCommit(NamedTuple):
    """A commit of offsets in a transaction, with the guard taken before its coordinator was asked."""

    commit: CommitOffsets
    guard: int
    transaction_version: int


class LedShard(led_shard.LedShard):
    """The group coordinator of one partition."""

    who = "groups"
    reads = (FetchOffsets, ListGroups, DescribeGroup, DescribeConsumerGroup)

    def __init__(self, partition: Partition, around: GroupShardContext, ended: Callable[[LedShard], None]) -> None:
        super().__init__(partition, around.clock, around.loading, ended)
        self._around = around
        self.machine = GroupCoordinator(around.config)
        self._deleted: set[str] = set()
        """Deleted topics that the machine has not been notified of."""
        self._news_seen = -1
        self._is_resolving = False
        self._markers: list[Marker] = []
        """Markers that arrived during loading, beyond the end up to which the log is loaded."""

    # -- life cycle -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.partition.on_marker = self._on_marker
        super().begin()

    def _on_end(self) -> None:
        if self.partition.on_marker == self._on_marker:
            self.partition.on_marker = None

    def _loads(self) -> Replayable:
        return self.machine

    def _serve(self) -> None:
        self.state = State.SERVING
        for marker in self._markers:
            self.machine.replay_marker(marker.producer_id, is_committed=marker.is_commit)
        self._around.news.refresh()
        deleted = self._around.news.missing(self.machine.tables.offsets.committed.values()) | self._deleted
        self._deleted = set()
        self._step(lambda *now: self.machine.loaded(self._topics(deleted), Instant(*now)))

    # -- steps ------------------------------------------------------------------------------------------------

    def _look_first(self, request: Any) -> Refused | None:
        if isinstance(request, GuardedCommit):
            return self._judge(request)
        if isinstance(request, ConsumerHeartbeat):
            if request.member_epoch == JOIN_EPOCH:
                # A member often joins right after its topic was created, and would otherwise learn of the topic seconds
                # later.
                self._around.news.refresh()
            self._see_topics()
        return None

    def _handle(self, ticket: Ticket, request: Any) -> Decide:
        asked = request.commit if isinstance(request, GuardedCommit) else request
        return lambda *now: self.machine.handle(ticket, asked, Instant(*now))

    def _batch_of(self, records: Sequence[Any], timestamp_ms: int) -> bytearray:
        return batch_of(records, timestamp_ms)

    def _on_due(self) -> None:
        self.on_news()
        if self.state is State.SERVING:
            self._step(lambda *now: self.machine.tick(Instant(*now)))

    # -- transactions -----------------------------------------------------------------------------------------

    def guard_for(self, commit: CommitOffsets) -> int | Refused:
        """Returns the guard for a commit. NO_GUARD means that the transaction coordinator need not be asked, because
        the transaction is open here."""
        if self.state is State.LOADING:
            return Refused(ErrorCode.coordinator_load_in_progress)
        assert commit.producer_id is not None
        guard = self.partition.log.transactions.begin_verification(
            commit.producer_id, commit.producer_epoch, NO_SEQUENCE, self._clock.now_ms()
        )
        return Refused(guard, "the producer has a newer epoch") if isinstance(guard, ErrorCode) else guard

    def _judge(self, request: GuardedCommit) -> Refused | None:
        commit = request.commit
        assert commit.producer_id is not None
        return self.partition.log.transactions.judge_batch(
            commit.producer_id,
            commit.producer_epoch,
            NO_SEQUENCE,
            is_transactional=True,
            guard=request.guard,
            transaction_version=request.transaction_version,
        )

    def _on_marker(self, marker: Marker) -> None:
        if self.state is State.LOADING:
            _EARLY_MARKER()
            self._markers.append(marker)
        elif self.state is State.SERVING:
            self._step(
                lambda *now: self.machine.complete_transaction(
                    marker.producer_id, is_committed=marker.is_commit, now=Instant(*now)
                )
            )

    # -- topics -----------------------------------------------------------------------------------------------

    def note_deleted(self, topics: Iterable[str]) -> None:
        """Notes deleted topics for the next notification."""
        self._deleted.update(topics)

    def on_news(self) -> None:
        """Notifies the machine of topic changes. A coordinator without groups of the consumer protocol is notified of
        deletions only; it learns of the other topics when it gets such a group."""
        is_concerned = self.state is State.SERVING and (self._deleted or self.machine.tables.consumer)
        if is_concerned and self._refusal() is None:
            self._see_topics()

    def _see_topics(self) -> None:
        if self._news_seen == self._around.news.version and not self._deleted:
            return
        deleted, self._deleted = self._deleted, set()
        self._step(lambda *now: self.machine.topics_changed(self._topics(deleted), Instant(*now)))

    def _topics(self, deleted: Iterable[str]) -> TopicsChanged:
        news = self._around.news
        self._news_seen = news.version
        return TopicsChanged(
            topics=news.facts, deleted=frozenset(deleted), regexes=self._matching(self.machine.regexes())
        )

    def _matching(self, regexes: Iterable[str]) -> dict[str, tuple[str, ...]]:
        matching = {regex: self._around.news.matching(regex) for regex in regexes}
        return {regex: names for regex, names in matching.items() if not isinstance(names, Refused)}

    # -- regular expressions ----------------------------------------------------------------------------------

    def _after(self, step: Any) -> None:
        """Resolves new regular expressions after the step that brought them, as Kafka does: the member is assigned the
        topics that it names at once, and matching topics with a later heartbeat."""
        if self.machine.has_unresolved_regexes and not self._is_resolving:
            self._is_resolving = True
            self._clock.call_soon(self._resolve_regexes)

    def _resolve_regexes(self) -> None:
        """Resolves regular expressions. If nothing can be appended now, a member's next heartbeat tries again."""
        self._is_resolving = False
        if not self._takes_steps():
            return
        self._around.news.refresh()
        self._see_topics()
        if self._takes_steps() and self.machine.has_unresolved_regexes:
            matching = self._matching(self.machine.unresolved_regexes())
            self._step(lambda *now: self.machine.regexes_resolved(matching, Instant(*now)))

    def _takes_steps(self) -> bool:
        return self.state is State.SERVING and self._refusal() is None
