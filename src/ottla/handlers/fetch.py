"""Fetch (key 1), v4-18.

Behaviour: whole batches up to the watermark, from memory where the log still has them there. A request that finds too
little waits until min bytes are there, something goes wrong, or its time is over. Sessions as in KIP-227.
Versions: v7 brings sessions, v12 is flexible, v13 names topics by id.
A follower (a replica id) gets everything that is appended, and says with its offset what it has; where its history
parts from ours, it is told so (KIP-595).
Not implemented: preferred read replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ottla.broker.divergence import NO_COMMON_EPOCH, divergence
from ottla.broker.fetch_sessions import FetchPlan
from ottla.broker.partition import FetchWatch, Partition
from ottla.handlers.api import Api, Buffers, Context
from ottla.log.batches import Slice
from ottla.log.contract import ColdRead
from ottla.model.errors import ErrorCode, Refused
from ottla.wire.fetch import (
    TOPIC_IDS_FROM,
    FetchPartition,
    FetchRequest,
    PartitionData,
    encode_fetch_response,
    parse_fetch_request,
)
from ottla.wire.produce import TopicKey

API = Api(key=1, name="Fetch", versions=(4, 18))

READ_COMMITTED = 1
REPLY_BYTES_MAX = 8 * 1024 * 1024
"""Whatever a client asks for: a slow reader holds its reply in the broker's memory until it has taken it."""
WATERMARK_WAIT_MS = 10
"""How long a follower's fetch waits for records before it takes along a watermark that the follower does not know yet.
In a stream the next records come first, and nothing more is sent than without it."""
Answer = tuple[TopicKey, PartitionData]


def handle_raw(ctx: Context, body: memoryview) -> Buffers | asyncio.Future[Buffers] | None:
    request = parse_fetch_request(body, ctx.version)
    plan = ctx.broker.fetch_sessions.plan(request, by_topic_id=ctx.version >= TOPIC_IDS_FROM)
    if plan.error is not ErrorCode.none:
        return [ctx.response_header, *encode_fetch_response(ctx.version, 0, plan.error, 0, [])]
    return Fetch(ctx, request, plan).begin()


class Fetch:
    """One request: a look at its partitions, and more looks while it waits."""

    __slots__ = (
        "_as_follower",
        "_bytes",
        "_cold",
        "_committed_only",
        "_ctx",
        "_future",
        "_has_watermark",
        "_is_hurried",
        "_plan",
        "_request",
        "_troubled",
        "_watched",
    )

    def __init__(self, ctx: Context, request: FetchRequest, plan: FetchPlan) -> None:
        self._ctx = ctx
        self._request = request
        self._plan = plan
        self._committed_only = request.isolation_level == READ_COMMITTED
        self._as_follower = request.replica_id >= 0
        self._future: asyncio.Future[Buffers] | None = None
        self._watched: list[Partition] = []
        self._bytes = 0
        self._troubled = False
        """Something in the answer cannot wait: an error, or a read that needs the disk."""
        self._cold: list[tuple[int, Partition, ColdRead]] = []
        self._has_watermark = False
        """The follower does not know how far others have got."""
        self._is_hurried = False

    # -- waiting ----------------------------------------------------------------------------------------------

    def begin(self) -> Buffers | asyncio.Future[Buffers]:
        answers = self._look()
        if self._is_enough():
            if not self._cold:
                return self._encode(answers)
            self._future = asyncio.get_running_loop().create_future()
            self._finish_cold(answers)
            return self._future
        self._future = asyncio.get_running_loop().create_future()
        self._park()
        return self._future

    @property
    def ended(self) -> bool:
        return self._future is None or self._future.done()

    def expire(self) -> None:
        if not self.ended:
            self._finish(self._look())

    def look_again(self) -> None:
        if self.ended:
            self._unpark()
            return
        answers = self._look()
        if self._is_enough():
            self._finish(answers)

    def _is_enough(self) -> bool:
        return (
            self._troubled
            or bool(self._cold)
            or self._bytes >= self._request.min_bytes
            or self._request.max_wait_ms <= 0
            or not self._plan.partitions
            or self._ctx.broker.stopping
        )

    def hurry(self) -> None:
        """A watermark has moved: the follower is told soon, with whatever comes until then."""
        if not self._is_hurried and not self.ended:
            self._is_hurried = True
            self._ctx.broker.deadlines.add(WATERMARK_WAIT_MS, self)

    def _park(self) -> None:
        watch = FetchWatch(id(self), self.look_again, self.hurry)
        for topic, wanted in self._plan.partitions:
            partition = self._partition(topic, wanted.partition)
            if partition is not None:
                partition.watch(watch, as_follower=self._as_follower)
                self._watched.append(partition)
        self._ctx.broker.deadlines.add(self._request.max_wait_ms, self)
        if self._has_watermark:
            self.hurry()
        assert self._future is not None
        self._future.add_done_callback(lambda _: self._unpark())

    def _unpark(self) -> None:
        watched, self._watched = self._watched, []
        for partition in watched:
            partition.unwatch(id(self))

    def _finish(self, answers: list[Answer]) -> None:
        self._unpark()
        if self._cold:
            self._finish_cold(answers)
        elif self._future is not None and not self._future.done():
            self._future.set_result(self._encode(answers))

    def _finish_cold(self, answers: list[Answer]) -> None:
        """Some records are on the disk only: a disk thread gets them, and the reply follows."""
        self._unpark()
        cold, self._cold = self._cold, []
        task = asyncio.ensure_future(self._read_cold(cold, answers))
        task.add_done_callback(self._on_cold_read)

    async def _read_cold(self, cold: list[tuple[int, Partition, ColdRead]], answers: list[Answer]) -> list[Answer]:
        for place, partition, read in cold:
            topic, data = answers[place]
            try:
                outcome: Slice | Refused = await partition.read_cold(read)
            except OSError as error:
                outcome = Refused(ErrorCode.kafka_storage_error, str(error))
            answers[place] = topic, self._data(partition, data.partition, outcome)
        return answers

    def _on_cold_read(self, task: asyncio.Task[list[Answer]]) -> None:
        future = self._future
        if future is None or future.done() or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(self._encode(task.result()))

    # -- looking ----------------------------------------------------------------------------------------------

    def _look(self) -> list[Answer]:
        self._bytes = 0
        self._troubled = False
        self._cold = []
        budget = min(self._request.max_bytes, self._ctx.broker.config.fetch_max_bytes, REPLY_BYTES_MAX)
        answers: list[Answer] = []
        for topic, wanted in self._plan.partitions:
            data = self._look_at(topic, wanted, budget - self._bytes, len(answers))
            self._bytes += data.records_size
            if data.error or data.diverging is not None:
                self._troubled = True
            answers.append((topic, data))
        return answers

    def _look_at(self, topic: TopicKey, wanted: FetchPartition, budget: int, place: int) -> PartitionData:
        partition = self._partition(topic, wanted.partition)
        if partition is None:
            return PartitionData(wanted.partition, self._missing(topic, wanted.partition))
        error = self._epoch_error(partition, wanted)
        if error is not ErrorCode.none:
            return PartitionData(wanted.partition, error)
        has_some = self._bytes > 0 or bool(self._cold)
        if has_some and budget <= 0:
            return self._data(partition, wanted.partition, Slice([], 0, wanted.fetch_offset))
        limit = min(wanted.max_bytes, budget)
        if self._as_follower:
            diverging = self._note_follower(partition, wanted)
            if diverging == NO_COMMON_EPOCH:
                return PartitionData(wanted.partition, ErrorCode.unknown_leader_epoch)
            if diverging is not None:
                return self._data(partition, wanted.partition, Slice([], 0, 0))._replace(diverging=diverging)
            outcome = partition.read_as_follower(wanted.fetch_offset, limit)
            if min(partition.high_watermark, wanted.fetch_offset) > wanted.high_watermark:
                self._has_watermark = True
        else:
            outcome = partition.read(wanted.fetch_offset, limit, committed_only=self._committed_only)
        if isinstance(outcome, ColdRead):
            self._cold.append((place, partition, outcome))
            outcome = Slice([], 0, wanted.fetch_offset)
        elif isinstance(outcome, Slice) and has_some and outcome.size_bytes > limit:
            # Only the first partition with records may exceed its limit, so that a reader always makes progress.
            outcome = Slice([], 0, wanted.fetch_offset)
        return self._data(partition, wanted.partition, outcome)

    def _partition(self, topic: TopicKey, index: int) -> Partition | None:
        found = self._ctx.broker.topic_by(topic)
        return found.partition(index) if found is not None else None

    def _missing(self, topic: TopicKey, index: int) -> ErrorCode:
        found = self._ctx.broker.topic_by(topic)
        if found is None and not isinstance(topic, str):
            return ErrorCode.unknown_topic_id
        is_elsewhere = found is not None and found.has(index)
        return ErrorCode.not_leader_or_follower if is_elsewhere else ErrorCode.unknown_topic_or_partition

    def _epoch_error(self, partition: Partition, wanted: FetchPartition) -> ErrorCode:
        if self._as_follower and not self._ctx.broker.knows_replica(
            self._request.replica_id, self._request.replica_epoch
        ):
            return ErrorCode.stale_broker_epoch
        if not partition.is_led_here:
            return ErrorCode.not_leader_or_follower
        known = wanted.current_leader_epoch
        if known == -1 or known == partition.leader_epoch:
            return ErrorCode.none
        return ErrorCode.fenced_leader_epoch if known < partition.leader_epoch else ErrorCode.unknown_leader_epoch

    def _note_follower(self, partition: Partition, wanted: FetchPartition) -> tuple[int, int] | None:
        """Where its history parts from ours, if it does; else what it has counts from now on."""
        diverging = divergence(partition.log.epochs, partition.log.end_offset, wanted)
        if diverging is None and partition.leading is not None:
            now_ms = self._ctx.broker.clock.monotonic_ms()
            replica = self._request.replica_id, self._request.replica_epoch
            if partition.leading.on_fetched(*replica, wanted.fetch_offset, now_ms):
                partition.on_watermark()
            self._ctx.broker.on_follower_heard(partition)
        return diverging

    def _data(self, partition: Partition, index: int, outcome: Slice | Refused) -> PartitionData:
        if isinstance(outcome, Refused):
            return PartitionData(
                index, outcome.error, partition.high_watermark, partition.last_stable_offset, partition.log_start_offset
            )
        return PartitionData(
            index,
            ErrorCode.none,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            aborted=() if self._committed_only else None,
            records=outcome.buffers,
            records_size=outcome.size_bytes,
        )

    def _encode(self, answers: Sequence[Answer]) -> Buffers:
        grouped: list[tuple[TopicKey, list[PartitionData]]] = []
        for topic, data in self._plan.trimmed(answers):
            if grouped and grouped[-1][0] == topic:
                grouped[-1][1].append(data)
            else:
                grouped.append((topic, [data]))
        traffic = self._ctx.broker.traffic
        reads = traffic.by_replicas if self._as_follower else traffic.by_consumers
        reads.note(sum([data.records_size for _, data in answers]))
        body = encode_fetch_response(self._ctx.version, 0, 0, self._plan.session_id, grouped)
        return [self._ctx.response_header, *body]
