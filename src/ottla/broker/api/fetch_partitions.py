"""Evaluates one partition of a fetch request, for a consumer or for a follower."""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Context
from ottla.broker.api.authorization import permits
from ottla.broker.api.partitions import check_leader_epoch
from ottla.broker.partition.divergence import NO_COMMON_EPOCH, divergence
from ottla.broker.partition.partition import Partition
from ottla.broker.partition.session_watches import SessionWatches
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest, PartitionData
from ottla.protocol.wire.produce import TopicKey

READ_COMMITTED = 1


class FetchEvaluation(NamedTuple):
    """The result for one partition."""

    data: PartitionData
    cold: tuple[Partition, ColdRead] | None = None
    """A read that needs the disk. Its records are not in `data` yet."""
    is_urgent: bool = False
    """The reply must not wait: it carries an error, a preferred read replica or a divergence."""
    is_behind: bool = False
    """The follower does not know the current high watermark."""
    is_throttled: bool = False
    """The throttle withholds records that may be available."""


class FetchEvaluator:
    """Evaluates the partitions of one request."""

    __slots__ = (
        "_asks_for_permission",
        "_broker",
        "_committed_only",
        "_ctx",
        "_request",
        "_throttled_bytes",
        "_watching",
        "as_follower",
    )

    def __init__(self, ctx: Context, request: FetchRequest, watching: SessionWatches | None = None) -> None:
        self._watching = watching
        self._ctx = ctx
        self._broker = ctx.broker
        self._asks_for_permission = ctx.broker.authorizer is not None
        self._request = request
        self._committed_only = request.isolation_level == READ_COMMITTED
        self._throttled_bytes = 0
        self.as_follower = request.replica_id >= 0

    def start_over(self) -> None:
        """Resets the throttle's count before the partitions are looked at again."""
        self._throttled_bytes = 0

    def partition(self, topic: TopicKey, index: int) -> Partition | None:
        """Returns the partition, if it has a replica here."""
        found = self._broker.topic_by(topic)
        return found.partition(index) if found is not None else None

    def look(self, topic: TopicKey, wanted: FetchPartition, budget: int, *, has_some: bool) -> FetchEvaluation:
        """Reads at most `budget` bytes. The first partition with records may exceed it, so that a reader always makes
        progress."""
        if self._asks_for_permission and not self._is_permitted(topic):
            return _failed(wanted, ErrorCode.topic_authorization_failed)
        partition = self.partition(topic, wanted.partition)
        if partition is None:
            return _failed(wanted, self._missing(topic, wanted.partition))
        if self._watching is not None:
            self._watching.watch((topic, wanted.partition), partition)
        error = self._refusal(partition, wanted)
        if error is not ErrorCode.none:
            return _failed(wanted, error)
        if self.as_follower:
            return self._look_as_follower(partition, wanted, budget, has_some)
        replica = self._preferred_replica(partition, wanted)
        if replica is not None:
            data = self.data(partition, wanted.partition, wanted.fetch_offset, _nothing(wanted))
            return FetchEvaluation(data._replace(preferred_read_replica=replica), is_urgent=True)
        if has_some and budget <= 0:
            return FetchEvaluation(self.data(partition, wanted.partition, wanted.fetch_offset, _nothing(wanted)))
        limit = min(wanted.max_bytes, budget)
        outcome = partition.read(wanted.fetch_offset, limit, committed_only=self._committed_only)
        return self._looked(partition, wanted, outcome, limit, has_some)

    def _look_as_follower(
        self, partition: Partition, wanted: FetchPartition, budget: int, has_some: bool
    ) -> FetchEvaluation:
        diverging = self._note_follower(partition, wanted)
        if diverging == NO_COMMON_EPOCH:
            return _failed(wanted, ErrorCode.unknown_leader_epoch)
        if diverging is not None:
            data = self.data(partition, wanted.partition, wanted.fetch_offset, Slice([], 0, 0))
            return FetchEvaluation(data._replace(diverging=diverging), is_urgent=True)
        if has_some and budget <= 0:  # the follower's progress was noted even so
            return FetchEvaluation(self.data(partition, wanted.partition, wanted.fetch_offset, _nothing(wanted)))
        is_behind = min(partition.high_watermark, wanted.fetch_offset) > wanted.high_watermark
        if wanted.fetch_offset == partition.log.end_offset:
            data = self.data(partition, wanted.partition, wanted.fetch_offset, _nothing(wanted))
            return FetchEvaluation(data, is_behind=is_behind)
        limit = min(wanted.max_bytes, budget)
        is_throttled = self._broker.throttles.is_leader_throttled(partition, self._request.replica_id)
        if is_throttled:
            allowance = self._broker.throttles.leader_allowance(self._throttled_bytes)
            if not allowance:
                data = self.data(partition, wanted.partition, wanted.fetch_offset, _nothing(wanted))
                return FetchEvaluation(data, is_behind=is_behind, is_throttled=True)
            limit = min(limit, allowance)
        outcome = partition.read_as_follower(wanted.fetch_offset, limit)
        found = self._looked(partition, wanted, outcome, limit, has_some)
        if is_throttled:
            self._throttled_bytes += found.data.records_size if found.cold is None else limit
        return found._replace(is_behind=is_behind)

    def _looked(
        self,
        partition: Partition,
        wanted: FetchPartition,
        outcome: Slice | ColdRead | Refused,
        limit: int,
        has_some: bool,
    ) -> FetchEvaluation:
        if isinstance(outcome, ColdRead):
            return FetchEvaluation(
                self.data(partition, wanted.partition, wanted.fetch_offset, _nothing(wanted)), (partition, outcome)
            )
        if isinstance(outcome, Slice) and has_some and outcome.size_bytes > limit:
            outcome = _nothing(wanted)
        data = self.data(partition, wanted.partition, wanted.fetch_offset, outcome)
        return FetchEvaluation(data, is_urgent=isinstance(outcome, Refused))

    # -- permissions ------------------------------------------------------------------------------------------

    def _is_permitted(self, topic: TopicKey) -> bool:
        """Decides whether the client may read a topic, each time that it looks at it: a permission that is revoked ends
        a waiting request. An unknown id names no topic."""
        if self.as_follower:
            return permits(self._ctx, rules.FETCH_AS_FOLLOWER)
        if isinstance(topic, str):
            return permits(self._ctx, rules.FETCH, topic)
        found = self._broker.topic_by(topic)
        return found is None or permits(self._ctx, rules.FETCH, found.name)

    # -- access -----------------------------------------------------------------------------------------------

    def _missing(self, topic: TopicKey, index: int) -> ErrorCode:
        found = self._broker.topic_by(topic)
        if found is None and not isinstance(topic, str):
            return ErrorCode.unknown_topic_id
        is_elsewhere = found is not None and found.has(index)
        return ErrorCode.not_leader_or_follower if is_elsewhere else ErrorCode.unknown_topic_or_partition

    def _refusal(self, partition: Partition, wanted: FetchPartition) -> ErrorCode:
        request = self._request
        if self.as_follower and not self._broker.metadata.knows_replica(request.replica_id, request.replica_epoch):
            return ErrorCode.stale_broker_epoch
        # A client that names no rack was not redirected here: it takes this follower for the leader.
        may_follow = not self.as_follower and bool(request.rack_id)
        if not (partition.is_read_here if may_follow else partition.is_led_here):
            return ErrorCode.not_leader_or_follower
        return check_leader_epoch(partition, wanted.current_leader_epoch)

    def _preferred_replica(self, partition: Partition, wanted: FetchPartition) -> int | None:
        rack, offset = self._request.rack_id, wanted.fetch_offset
        if not rack or not partition.log.start_offset <= offset <= partition.log.end_offset:
            return None
        return self._broker.preferred_read_replica(partition, rack, offset)

    def _note_follower(self, partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
        """Returns the point where the follower's history diverges, if it does. Otherwise its progress counts from now
        on."""
        diverging = divergence(partition.log.epochs, partition.log.end_offset, wanted)
        if diverging is None and partition.leading is not None:
            now_ms = self._broker.clock.monotonic_ms()
            replica = self._request.replica_id, self._request.replica_epoch
            ends = wanted.log_start_offset, wanted.acknowledged_end
            if partition.leading.on_fetched(*replica, wanted.fetch_offset, now_ms, *ends):
                partition.on_watermark()
            self._broker.metadata.on_follower_heard(partition)
        return diverging

    # -- results ----------------------------------------------------------------------------------------------

    def data(self, partition: Partition, index: int, fetch_offset: int, outcome: Slice | Refused) -> PartitionData:
        """Builds the reply for a partition from the result of a read."""
        if self._committed_only and isinstance(outcome, Slice) and fetch_offset < partition.log.start_offset:
            # The log start moved during the disk read, and aborted transactions are known only from the log start on.
            outcome = Refused(ErrorCode.offset_out_of_range)
        marks = partition.high_watermark, partition.last_stable_offset, partition.log.start_offset
        if isinstance(outcome, Refused):
            return PartitionData(index, outcome.error, *marks)
        return PartitionData(
            index,
            ErrorCode.none,
            *marks,
            aborted=_aborted(partition, fetch_offset, outcome) if self._committed_only else None,
            records=outcome.buffers,
            records_size=outcome.size_bytes,
            next_offset=outcome.next_offset,
        )


def _aborted(partition: Partition, fetch_offset: int, outcome: Slice) -> list[tuple[int, int]]:
    """Returns the aborted transactions that a read_committed consumer has to skip."""
    if not outcome.buffers:
        return []
    found = partition.log.transactions.aborted.between(fetch_offset, outcome.next_offset)
    return [(aborted.producer_id, aborted.first_offset) for aborted in found]


def _nothing(wanted: FetchPartition) -> Slice:
    return Slice([], 0, wanted.fetch_offset)


def _failed(wanted: FetchPartition, error: ErrorCode) -> FetchEvaluation:
    return FetchEvaluation(PartitionData(wanted.partition, error), is_urgent=True)
