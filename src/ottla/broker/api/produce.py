"""Produce (key 0), v3-13.

Behaviour: validates and appends every partition of the request at once, in the order of the connection. The reply is
sent when all of them are acknowledged, as their topic's durability demands, or the request's timeout has expired. With
acks=0 there is no reply. While the broker's backlog of unacknowledged records is full, a request waits before any of it
is appended. The first batch of a transaction in a partition waits for a reply from the transaction coordinator, and the
connection's next request waits with it. A batch with invalid records is rejected as a whole: records without a key in a
compacted topic, timestamps outside of the topic's limits. The reply lists the invalid records by their index, unless
the batch has more than 100,000 records.
Versions: v8 lists invalid records; v9 flexible; v11 knows TRANSACTION_ABORTABLE; v12 adds partitions to a transaction
implicitly; v13 topics by id.
Not implemented: nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Buffers, ConnectionState, Context, Reply
from ottla.broker.api.authorization import is_permitted, refusal
from ottla.broker.api.produce_in_transaction import Place, TransactionalBatches, has_transactional
from ottla.broker.partition.batch_validation import Appended
from ottla.broker.partition.partition import Partition
from ottla.broker.partition.pending_reply import PendingReply
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.produce_run import ProduceRun, find_run
from ottla.protocol.wire.produce import (
    PartitionProduced,
    ProduceRequest,
    TopicKey,
    encode_produce_response,
    parse_produce_request,
)

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.topics.topics import Topic

API = Api(key=0, name="Produce", versions=(3, 13))

_NONE = ErrorCode.none
_NOTHING_DENIED: Mapping[TopicKey, ErrorCode] = {}


def handle_raw(ctx: Context, body: memoryview) -> Reply:
    """Appends the batches of a request. Replies once they are acknowledged, or holds the request back under load."""
    request = parse_produce_request(body, ctx.version)
    backlog = ctx.broker.backlog
    if backlog.may_hold_back and _is_held_back(ctx, request):
        return backlog
    produce = Produce(ctx, request)
    if ctx.broker.authorizer is not None:
        produce.denied = _denied(ctx, request)
    if has_transactional(request) and request.acks in (-1, 0, 1):
        produce.in_transaction = TransactionalBatches(ctx, _permitted(request, produce.denied))
        if produce.in_transaction.must_ask:
            return _ask_first(produce, produce.in_transaction)
    return produce.run()


def _denied(ctx: Context, request: ProduceRequest) -> Mapping[TopicKey, ErrorCode]:
    """Returns the topics that the client must not write to, each with its error. An unknown id names no topic."""
    if has_transactional(request):
        refused = refusal(ctx, rules.PRODUCE_IN_TRANSACTION, request.transactional_id or "")
        if refused is not None:
            return {key: refused.error for key, _ in request.topics}
    denied: dict[TopicKey, ErrorCode] = {}
    for key, _ in request.topics:
        topic = None if isinstance(key, str) else ctx.broker.topic_by(key)
        name = key if isinstance(key, str) else topic.name if topic is not None else None
        refused = None if name is None else refusal(ctx, rules.PRODUCE, name)
        if refused is not None:
            denied[key] = refused.error
    return denied


def _permitted(request: ProduceRequest, denied: Mapping[TopicKey, ErrorCode]) -> ProduceRequest:
    if not denied:
        return request
    return request._replace(topics=[(key, partitions) for key, partitions in request.topics if key not in denied])


def _is_held_back(ctx: Context, request: ProduceRequest) -> bool:
    """Whether the backlog of one of its partitions has to drain first. A partition that would reject the request does
    so at once."""
    broker = ctx.broker
    for key, partitions in request.topics:
        topic = broker.topic_by(key)
        for index, _ in partitions:
            partition = topic.partition(index) if topic is not None else None
            if partition is None or partition.refusal_for(request.acks) is not None:
                continue
            if broker.backlog.holds_back(partition.backlog, request.acks, ctx.connection):
                return True
    return False


async def _ask_first(produce: Produce, in_transaction: TransactionalBatches) -> Buffers | None:
    await in_transaction.ask()
    reply = produce.run()
    return await reply if isinstance(reply, asyncio.Future) else reply


def handle_run(
    broker: Broker, connection: ConnectionState, frames: Sequence[memoryview], at: int, count_max: int
) -> tuple[bytes | PendingReply[bytes] | None, int]:
    """Handles the frames from `at` on that can be handled together. Returns their replies, each with its size in front,
    and their number; 0 if the first frame must take the general path."""
    if broker.backlog.may_hold_back:
        return None, 0
    run = find_run(frames, at, count_max)
    if run is None:
        return None, 0
    began_s = broker.clock.seconds()
    topic = broker.topic_by(run.topic)
    partition = topic.partition(run.partition) if topic is not None else None
    if topic is None or partition is None or partition.refusal_for(run.acks) is not None:
        return None, 0
    if broker.authorizer is not None and not is_permitted(broker, connection, rules.PRODUCE, topic.name):
        return None, 0
    if not partition.append_run(run, broker.clock.now_ms()):
        return None, 0
    broker.meters.requests[API.key, run.version] += len(run)
    if run.acks == 0:
        broker.meters.produce_s[0].note(broker.clock.seconds() - began_s, len(run))
        return None, len(run)
    watermark = partition.acknowledged_for(run.acks)
    if run.ends[-1] <= watermark:
        if partition.watches.is_unannounced:
            partition.watches.on_produced()
        broker.meters.produce_s[run.acks].note(broker.clock.seconds() - began_s, len(run))
        return run.replies(watermark, _NONE, partition.log.start_offset), len(run)
    return RunWait(broker, connection, partition, run, began_s).pending, len(run)


class RunWait:
    """A run that is not acknowledged yet. All of it waits for its end: it was appended together, and one group commit
    or one write makes all of it durable."""

    __slots__ = ("_began_s", "_broker", "_connection", "_log_start_offset", "_partition", "_run", "pending")

    def __init__(
        self, broker: Broker, connection: ConnectionState, partition: Partition, run: ProduceRun, began_s: float
    ) -> None:
        self._broker = broker
        self._connection = connection
        connection.unacknowledged += 1
        self._partition = partition
        self._run = run
        self._began_s = began_s
        self._log_start_offset = partition.log.start_offset
        self.pending: PendingReply[bytes] = PendingReply()
        partition.when_acknowledged(run.ends[-1], self._settle, run.acks)
        if not self.pending.done():
            broker.deadlines.add(max(run.timeout_ms, 0), self)

    @property
    def ended(self) -> bool:
        """True once the replies were sent."""
        return self.pending.done()

    def expire(self) -> None:
        self._answer(self._partition.acknowledged_for(self._run.acks), ErrorCode.request_timed_out)

    def _settle(self, error: ErrorCode) -> None:
        """Completes the run. An error applies to all of it: after a change of role or a failure, the high watermark
        says nothing about it."""
        self._answer(self._run.ends[-1] if error is _NONE else -1, error)

    def _answer(self, acknowledged_end: int, error: ErrorCode) -> None:
        if self.pending.done():
            return
        run, broker = self._run, self._broker
        self._connection.unacknowledged -= 1
        broker.meters.produce_s[run.acks].note(broker.clock.seconds() - self._began_s, len(run))
        if error is not _NONE:
            broker.meters.note_error(API.key, error, sum(1 for end in run.ends if end > acknowledged_end))
        self.pending.complete(run.replies(acknowledged_end, error, self._log_start_offset))


class Produce:
    """One request in progress: its results, and the partitions that are not acknowledged yet."""

    __slots__ = (
        "_began_s",
        "_ctx",
        "_future",
        "_request",
        "_results",
        "_unsettled",
        "_waiting",
        "denied",
        "in_transaction",
    )

    def __init__(self, ctx: Context, request: ProduceRequest) -> None:
        self._ctx = ctx
        self._request = request
        self._began_s = ctx.broker.clock.seconds()
        self._results: list[tuple[TopicKey, list[PartitionProduced]]] = []
        self._waiting: list[tuple[Partition, int, list[PartitionProduced], int]] = []
        """Partition, end offset to reach, the topic's results, index in them."""
        self._unsettled = 0
        self._future: asyncio.Future[Buffers] | None = None
        self.in_transaction: TransactionalBatches | None = None
        self.denied: Mapping[TopicKey, ErrorCode] = _NOTHING_DENIED
        """The topics that the client must not write to."""

    def run(self) -> Buffers | asyncio.Future[Buffers] | None:
        """Appends the batches and returns the reply."""
        self.append_all()
        if self._request.acks == 0:
            self.note_end()
            return None
        return self.reply()

    def append_all(self) -> None:
        """Validates and appends the batches of all partitions."""
        broker = self._ctx.broker
        now_ms = broker.clock.now_ms()
        acks = self._request.acks
        acks_known = acks in (-1, 0, 1)
        for key, partitions in self._request.topics:
            topic = broker.topic_by(key)
            results: list[PartitionProduced] = []
            self._results.append((key, results))
            for index, records in partitions:
                partition = topic.partition(index) if topic is not None else None
                if not acks_known:
                    outcome: Appended | Refused = Refused(ErrorCode.invalid_required_acks)
                elif key in self.denied:
                    outcome = Refused(self.denied[key])
                elif partition is None:
                    outcome = Refused(_missing(topic, key, index))
                else:
                    refused = partition.refusal_for(acks) or self._refused_in_transaction((key, index))
                    if refused is not None:
                        partition.refused.note(records, refused, now_ms)
                    outcome = refused or self._append(partition, (key, index), records, now_ms)
                results.append(_result(index, outcome))
                if partition is None or isinstance(outcome, Refused):
                    continue
                if outcome.end_offset > partition.acknowledged_for(acks):
                    self._waiting.append((partition, outcome.end_offset, results, len(results) - 1))

    def _append(
        self, partition: Partition, place: Place, records: memoryview | None, now_ms: int
    ) -> Appended | Refused:
        if self.in_transaction is None:
            return partition.append(records, now_ms)
        return partition.append(records, now_ms, self.in_transaction.guarded(place))

    def _refused_in_transaction(self, place: Place) -> Refused | None:
        return self.in_transaction.refused.get(place) if self.in_transaction is not None else None

    def reply(self) -> Buffers | asyncio.Future[Buffers]:
        """Returns the reply, or a future of it if acknowledgements are pending."""
        if not self._waiting:
            return self._encode()
        self._unsettled = len(self._waiting)
        future: asyncio.Future[Buffers] = asyncio.get_running_loop().create_future()
        self._future = future
        self._ctx.connection.unacknowledged += 1
        for partition, end_offset, results, place in self._waiting:
            partition.when_acknowledged(end_offset, partial(self._settle, results, place), self._request.acks)
        if not future.done():
            self._ctx.broker.deadlines.add(max(self._request.timeout_ms, 0), self)
        return future

    @property
    def ended(self) -> bool:
        """True if the reply was sent, or never had to wait."""
        return self._future is None or self._future.done()

    def expire(self) -> None:
        """Replies with a timeout for the unacknowledged partitions. Their records stay in the log: an idempotent client
        that retries gets the original offset."""
        if self.ended:
            return
        for partition, end_offset, results, place in self._waiting:
            if end_offset > partition.acknowledged_for(self._request.acks):
                results[place] = PartitionProduced(results[place].partition, ErrorCode.request_timed_out)
        self._finish()

    def _settle(self, results: list[PartitionProduced], place: int, error: ErrorCode) -> None:
        if self.ended:
            return
        if error is not _NONE:
            results[place] = PartitionProduced(results[place].partition, error)
        self._unsettled -= 1
        if self._unsettled == 0:
            self._finish()

    def _finish(self) -> None:
        if self._future is not None and not self._future.done():
            self._ctx.connection.unacknowledged -= 1
            self._future.set_result(self._encode())

    def note_end(self) -> None:
        """Counts the duration and the errors."""
        broker = self._ctx.broker
        known = broker.meters.produce_s.get(self._request.acks)
        if known is not None:  # otherwise the request was refused for its acks
            known.note(broker.clock.seconds() - self._began_s)
        for _, results in self._results:
            for result in results:
                if result.error:
                    broker.meters.note_error(API.key, result.error)

    def _encode(self) -> Buffers:
        self.note_end()
        return [self._ctx.response_header + encode_produce_response(self._ctx.version, self._results)]


def _missing(topic: Topic | None, key: TopicKey, index: int) -> ErrorCode:
    if topic is None and not isinstance(key, str):
        return ErrorCode.unknown_topic_id
    is_elsewhere = topic is not None and topic.has(index)
    return ErrorCode.not_leader_or_follower if is_elsewhere else ErrorCode.unknown_topic_or_partition


def _result(index: int, outcome: Appended | Refused) -> PartitionProduced:
    if isinstance(outcome, Refused):
        return PartitionProduced(
            index, outcome.error, record_errors=outcome.record_errors, error_message=outcome.message
        )
    return PartitionProduced(index, _NONE, outcome.base_offset, outcome.log_append_time_ms, outcome.log_start_offset)
