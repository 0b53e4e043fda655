"""Fetch (key 1), v4-18.

Behaviour: returns whole batches up to the high watermark. For read_committed it returns batches up to the last stable
offset, with the aborted transactions among them. Batches come from memory if the log still has them there. A request
that finds too little waits until min bytes are available, an error occurs, or its time is up. Sessions work as in
KIP-227. A follower (a request with a replica id) gets everything that is appended, and acknowledges with its offset
what it has; if its history diverges from the leader's, the reply says where (KIP-595). A consumer that names its rack
is redirected to a follower there if `replica.selector.class` says so. That follower serves it up to the high watermark
that it knows (KIP-392).
Versions: v7 adds sessions; v11 the consumer's rack; v12 flexible; v13 topics by id; v18 the high watermark that a
follower knows.
Not implemented: nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ottla.broker.api import authorization_table as rules
from ottla.broker.api import replica_fetch_fast_path as replica_turn
from ottla.broker.api.api import Api, Buffers, Context
from ottla.broker.api.authorization import permits
from ottla.broker.api.fetch_partitions import FetchEvaluator
from ottla.broker.api.replica_fetch_fast_path import REPLY_BYTES_MAX, WATERMARK_WAIT_MS
from ottla.broker.partition.fetch_sessions import FetchPlan, FetchSession
from ottla.broker.partition.partition import Partition
from ottla.broker.partition.session_watches import PartitionKey
from ottla.broker.partition.waits import FetchWatch, ReplicaWatch
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.wire import replica_fetch
from ottla.protocol.wire.fetch import (
    TOPIC_IDS_FROM,
    FetchPartition,
    FetchRequest,
    PartitionData,
    encode_fetch_response,
    parse_fetch_request,
    request_of_one,
)
from ottla.protocol.wire.produce import TopicKey
from ottla.protocol.wire.replica_fetch import ReplicaFetchRequest

API = Api(key=1, name="Fetch", versions=(4, 18))

Answer = tuple[TopicKey, PartitionData]


def handle_raw(ctx: Context, body: memoryview) -> Buffers | asyncio.Future[Buffers] | None:
    """Serves a fetch of a consumer or a follower: at once if there is enough data, otherwise later."""
    is_usual = ctx.version == replica_fetch.VERSION and len(body) == replica_fetch.REQUEST_BYTES
    if is_usual and permits(ctx, rules.FETCH_AS_FOLLOWER):
        reply = replica_turn.take(ctx, body, _go_on_with)
        if reply is not None:
            return reply
    request = parse_fetch_request(body, ctx.version)
    plan = ctx.broker.fetch_sessions.plan(request, by_topic_id=ctx.version >= TOPIC_IDS_FROM)
    if plan.error is not ErrorCode.none:
        ctx.broker.meters.note_error(API.key, plan.error)
        return [ctx.response_header, *encode_fetch_response(ctx.version, 0, plan.error, 0, [])]
    return Fetch(ctx, request, plan).begin()


def _go_on_with(
    ctx: Context, one: ReplicaFetchRequest, session: FetchSession, future: asyncio.Future[Buffers]
) -> Fetch:
    """Continues a parked request of a follower that can no longer be handled by `replica_turn`."""
    fetch = Fetch(ctx, request_of_one(one), FetchPlan(session, [], is_incremental=True))
    fetch.go_on(future)
    return fetch


class Fetch:
    """One request: it looks at its partitions once, and again while it waits."""

    __slots__ = (
        "_began_s",
        "_bytes",
        "_cold",
        "_ctx",
        "_future",
        "_has_waited",
        "_is_behind",
        "_is_hurried",
        "_is_urgent",
        "_looked_at",
        "_looking",
        "_plan",
        "_request",
        "_throttled",
        "_watched",
        "_watching",
    )

    def __init__(self, ctx: Context, request: FetchRequest, plan: FetchPlan) -> None:
        self._ctx = ctx
        self._request = request
        self._plan = plan
        self._began_s = ctx.broker.clock.seconds()
        self._has_waited = False
        self._watching = plan.session.watching if plan.session is not None else None
        self._looking = FetchEvaluator(ctx, request, self._watching)
        self._looked_at: Sequence[tuple[TopicKey, FetchPartition]] = ()
        self._future: asyncio.Future[Buffers] | None = None
        self._watched: list[Partition] = []
        self._bytes = 0
        self._is_urgent = False
        self._is_behind = False
        self._is_hurried = False
        self._cold: list[tuple[int, Partition, ColdRead, int]] = []
        self._throttled: list[PartitionKey] = []

    # -- waiting ----------------------------------------------------------------------------------------------

    def begin(self) -> Buffers | asyncio.Future[Buffers]:
        """Returns the reply, or a future of it if the request waits for data or for the disk."""
        answers = self._look()
        if self._is_enough():
            self._note_served(answers)
            if not self._cold:
                return self._encode(answers)
            self._future = asyncio.get_running_loop().create_future()
            self._finish_cold(answers)
            return self._future
        self._future = asyncio.get_running_loop().create_future()
        self._park()
        return self._future

    def go_on(self, future: asyncio.Future[Buffers]) -> None:
        """Takes over a request that was parked in `replica_turn`."""
        self._future = future
        self._has_waited = True
        answers = self._look()
        if self._is_enough():
            self._finish(answers)
        else:
            self._park()

    @property
    def ended(self) -> bool:
        """True if the reply was sent, or never had to wait."""
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

    def hurry(self) -> None:
        """Replies within a short time, to deliver a new high watermark to the follower along with records that arrive
        by then."""
        if not self._is_hurried and not self.ended:
            self._is_hurried = True
            self._ctx.broker.deadlines.add(WATERMARK_WAIT_MS, self)

    def _is_enough(self) -> bool:
        return (
            self._is_urgent
            or bool(self._cold)
            or self._bytes >= self._request.min_bytes
            or self._request.max_wait_ms <= 0
            or self._plan.is_empty
            or self._ctx.broker.stopping
        )

    def _park(self) -> None:
        self._has_waited = True
        if self._watching is not None:
            self._watching.waiting = self
        else:
            self._watch_all()
        self._ctx.broker.deadlines.add(self._request.max_wait_ms, self)
        if self._looking.as_follower:
            self._ctx.connection.waiting_fetch = self
            if self._is_behind:
                self.hurry()
        assert self._future is not None
        self._future.add_done_callback(lambda _: self._unpark())

    def _watch_all(self) -> None:
        for topic, wanted in self._looked_at:
            partition = self._looking.partition(topic, wanted.partition)
            if partition is None:
                continue
            self._watched.append(partition)
            if self._looking.as_follower:
                partition.watches.add_replica(ReplicaWatch(id(self), self.look_again, self._waits, self.hurry))
            else:
                partition.watches.add(FetchWatch(id(self), self.look_again))

    def _waits(self) -> bool:
        return not self.ended

    def _unpark(self) -> None:
        if self._watching is not None and self._watching.waiting is self:
            self._watching.waiting = None
        watched, self._watched = self._watched, []
        for partition in watched:
            partition.watches.remove(id(self))

    def _note_served(self, answers: Sequence[Answer]) -> None:
        """Removes the partitions of this reply from the session's changed ones, except those that were throttled or for
        which there was no room. Partitions with records are requested again in any case, from the next offset on."""
        if self._watching is None:
            return
        left: dict[PartitionKey, None] = dict.fromkeys(self._throttled)
        if self._bytes or self._cold:
            for (topic, wanted), (_, data) in zip(self._looked_at, answers, strict=True):
                if not data.records_size and self._has_more(topic, wanted):
                    left[topic, wanted.partition] = None
        self._watching.changed = left

    def _has_more(self, topic: TopicKey, wanted: FetchPartition) -> bool:
        partition = self._looking.partition(topic, wanted.partition)
        return partition is not None and partition.log.end_offset > wanted.fetch_offset

    def _finish(self, answers: list[Answer]) -> None:
        self._unpark()
        self._note_served(answers)
        if self._cold:
            self._finish_cold(answers)
        elif self._future is not None and not self._future.done():
            self._future.set_result(self._encode(answers))

    def _finish_cold(self, answers: list[Answer]) -> None:
        """Reads records that are only on disk on a disk thread; the reply follows."""
        self._unpark()
        cold, self._cold = self._cold, []
        self._ctx.broker.meters.cold_reads += len(cold)
        task = asyncio.ensure_future(self._read_cold(cold, answers))
        task.add_done_callback(self._on_cold_read)

    async def _read_cold(self, cold: list[tuple[int, Partition, ColdRead, int]], answers: list[Answer]) -> list[Answer]:
        for place, partition, read, cuts in cold:
            topic, data = answers[place]
            try:
                outcome: Slice | Refused = await partition.read_cold(read, cuts)
            except OSError as error:
                outcome = Refused(ErrorCode.kafka_storage_error, str(error))
            answers[place] = topic, self._looking.data(partition, data.partition, data.next_offset, outcome)
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

    # -- reading ----------------------------------------------------------------------------------------------

    def _look(self) -> list[Answer]:
        self._bytes = 0
        self._is_urgent = self._is_behind = False
        self._cold = []
        self._throttled = []
        self._looking.start_over()
        budget = min(self._request.max_bytes, self._ctx.broker.config.fetch_max_bytes, REPLY_BYTES_MAX)
        answers: list[Answer] = []
        self._looked_at = self._plan.to_look_at()
        for topic, wanted in self._looked_at:
            has_some = self._bytes > 0 or bool(self._cold)
            data, cold, is_urgent, is_behind, is_throttled = self._looking.look(
                topic, wanted, budget - self._bytes, has_some=has_some
            )
            self._bytes += data.records_size
            self._is_urgent |= is_urgent
            self._is_behind |= is_behind
            if cold is not None:
                self._cold.append((len(answers), *cold, cold[0].cuts))
            if is_throttled:
                self._throttled.append((topic, wanted.partition))
            answers.append((topic, data))
        return answers

    def _encode(self, answers: Sequence[Answer]) -> Buffers:
        grouped: list[tuple[TopicKey, list[PartitionData]]] = []
        for topic, data in self._plan.trimmed(answers):
            if grouped and grouped[-1][0] == topic:
                grouped[-1][1].append(data)
            else:
                grouped.append((topic, [data]))
        self._note_end(answers)
        body = encode_fetch_response(self._ctx.version, 0, 0, self._plan.session_id, grouped)
        return [self._ctx.response_header, *body]

    def _note_end(self, answers: Sequence[Answer]) -> None:
        """Counts the data served, the duration and the errors."""
        broker, is_replica = self._ctx.broker, self._looking.as_follower
        size_bytes = 0
        for (topic, wanted), (_, data) in zip(self._looked_at, answers, strict=True):
            if data.records_size:
                size_bytes += data.records_size
                found = broker.topic_by(topic)
                if found is not None:
                    read = found.traffic.by_replicas if is_replica else found.traffic.by_consumers
                    read.bytes += data.records_size
                    read.records += data.next_offset - wanted.fetch_offset
                    if is_replica:
                        self._note_sent(topic, data)
            elif data.error:
                broker.meters.note_error(API.key, data.error)
        reads = broker.traffic.by_replicas if is_replica else broker.traffic.by_consumers
        reads.note(size_bytes)
        broker.meters.fetch_s[is_replica, self._has_waited].note(broker.clock.seconds() - self._began_s)

    def _note_sent(self, topic: TopicKey, data: PartitionData) -> None:
        partition = self._looking.partition(topic, data.partition)
        if partition is not None:
            self._ctx.broker.throttles.on_sent(partition, self._request.replica_id, data.records_size)
