"""Sends a producer's batches to the leaders of their partitions and settles the replies.

Everything runs in callbacks on the event loop. `_pump` checks each partition with something to send and combines one
batch of each into a request for its leader. It runs again after a reply, a new connection, new metadata, new records or
a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ottla.client.brokers import Brokers
from ottla.client.errors import (
    ClientError,
    DeliveryError,
    DeliveryTimedOutError,
    ProducerFencedError,
    RecordTooLargeError,
    SequenceLostError,
    UnsupportedByBrokerError,
    error_name,
    refused,
)
from ottla.client.metadata import PASSING_FAILURES, Metadata
from ottla.client.producer.batches import Batch, Identity
from ottla.client.producer.deliveries import UNKNOWN_OFFSET
from ottla.client.producer.flushes import Flushes
from ottla.client.producer.keyed_tasks import KeyedTasks
from ottla.client.producer.outcomes import LEADER_MOVED, Outcome, error_code, outcome_of
from ottla.client.producer.partition_queue import EpochsUsedUpError, PartitionQueue
from ottla.client.producer.settings import ProducerSettings
from ottla.net.apis import PRODUCE, ClientApi
from ottla.net.connection import Connection
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.primitives import MalformedRequest
from ottla.protocol.wire.produce import (
    TOPIC_IDS_FROM,
    PartitionProduced,
    TopicKey,
    encode_produce_request,
    parse_produce_response,
)

PURPOSE = "produce"
Sent = dict[tuple[TopicKey, int], tuple[PartitionQueue, Batch]]


class TransactionGate(Protocol):
    """What a sender needs to know about the transaction that its batches belong to."""

    transactional_id: str

    @property
    def produce_api(self) -> ClientApi:
        """The versions of Produce that the transaction version allows."""
        ...

    def admits(self, topic: str, partition: int) -> bool:
        """Returns whether a batch may be sent to this partition now. If not, `wake` is called once it may."""
        ...

    def batch_failed(self, reason: DeliveryError) -> None:
        """Reports a batch that was given up."""
        ...


class Sender:
    """Sends the batches of all partitions. `on_settled` is called for each batch that leaves the buffer.

    With a `gate`, batches belong to transactions. A batch that fails then ends the sequence until `restart`.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        brokers: Brokers,
        metadata: Metadata,
        identity: Identity | None,
        on_settled: Callable[[Batch, DeliveryError | None], None],
        flushes: Flushes,
        gate: TransactionGate | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.fatal: DeliveryError | None = None
        self.traits = settings.traits
        self._settings = settings
        self._brokers = brokers
        self._metadata = metadata
        self._identity = identity
        self._on_settled = on_settled
        self._flushes = flushes
        self._gate = gate
        self._dropping: DeliveryError | None = None
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._busy: dict[PartitionQueue, None] = {}
        self._why_not: dict[PartitionQueue, str] = {}
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._background = KeyedTasks(on_done=self.wake)

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """Returns the queue of a partition, created on first use."""
        found = self._queues.get((topic, partition))
        if found is None:
            found = self._queues[topic, partition] = PartitionQueue(topic, partition, self._identity)
        return found

    def close_and_list(self) -> list[Batch]:
        """Closes all open batches, even those that are not due. Returns all unsettled batches."""
        unresolved: list[Batch] = []
        for queue in list(self._busy):
            queue.close_open(self.traits)
            unresolved += queue.unresolved
        self.wake()
        return unresolved

    def wake(self, queue: PartitionQueue | None = None) -> None:
        """Schedules a run, because something changed. `queue` has something to send."""
        if queue is not None:
            self._busy[queue] = None
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._pump)

    def stop(self) -> None:
        """Cancels timers and background tasks."""
        if self._timer is not None:
            self._timer.cancel()
        self._background.cancel()

    def abandon(self, reason: DeliveryError) -> None:
        """Fails all unsettled batches, and those that come later."""
        self.fatal = self.fatal or reason
        for queue in list(self._busy):
            queue.close_open(self.traits)
            for batch in queue.unresolved:
                unsure = batch.may_be_written or batch.in_flight
                self._give_up(queue, batch, type(reason)(str(reason), reason.error, may_be_written=unsure))
        self._busy.clear()

    def drop(self, reason: DeliveryError) -> None:
        """Gives up batches that are not in flight, and batches in flight unless they are acknowledged."""
        self._dropping = reason
        self.wake()

    def restart(self, identity: Identity) -> None:
        """Allows a new transaction to begin. Requires that no batch is unsettled."""
        self._dropping = None
        if identity != self._identity:
            self._identity = identity
            self._queues.clear()
            self._why_not.clear()

    # Sending.

    def _pump(self) -> None:
        self._scheduled = False
        if self.fatal is not None:
            return
        try:
            if self._dropping is not None:
                self._give_up_landed(self._dropping)
            else:
                self._send_what_is_ready(self.loop.time())
        except Exception as fault:  # a bug; no caller may wait forever because of it
            self.abandon(DeliveryError(f"the producer failed unexpectedly: {type(fault).__name__}: {fault}"))
            raise

    def _send_what_is_ready(self, now_s: float) -> None:
        by_leader: dict[int, list[PartitionQueue]] = {}
        next_event_s = float("inf")
        for queue in list(self._busy):
            self._tidy(queue, now_s)
            if self.fatal is not None or self._dropping is not None:
                return
            if queue.is_empty:
                del self._busy[queue]
                continue
            next_event_s = min(next_event_s, queue.next_event_s(now_s))
            if queue.can_send(now_s):
                leader = self._metadata.leader(queue.topic, queue.partition)
                if leader is None:
                    self._refresh_metadata()
                elif not queue.may_go_to(leader):
                    continue  # the replies of the previous leader, or their timeout, wake us
                elif self._gate is None or self._gate.admits(queue.topic, queue.partition):
                    by_leader.setdefault(leader, []).append(queue)
        for leader, queues in by_leader.items():
            self._send_to(leader, queues, now_s)
        if self._busy and self._metadata.needs_refresh:
            self._refresh_metadata()
        self._arm_timer(next_event_s)

    def _tidy(self, queue: PartitionQueue, now_s: float) -> None:
        """Gives up expired batches, and batches whose retry the broker could not recognise."""
        if queue.open is not None and queue.open.deadline_s <= now_s:
            queue.close_open(self.traits)
        for batch in queue.expired(now_s):
            self._give_up(queue, batch, self._timed_out(queue, batch))
        if self._dropping is not None:
            return
        try:
            lost = queue.give_up_unnumberable()
        except EpochsUsedUpError:
            self.abandon(SequenceLostError("this producer's epochs are used up; create a new producer"))
            return
        for batch in lost:
            message = f"{_describe(queue, batch)}: the connection was lost and an earlier batch failed, so they may or "
            batch.delivery.failed(reason := DeliveryTimedOutError(f"{message}may not be written", may_be_written=True))
            self._on_settled(batch, reason)

    def _give_up_landed(self, reason: DeliveryError) -> None:
        for queue in list(self._busy):
            queue.close_open(self.traits)
            for batch in queue.unresolved:
                if not batch.in_flight:
                    self._give_up(queue, batch, reason)
            if queue.is_empty:
                del self._busy[queue]

    def _timed_out(self, queue: PartitionQueue, batch: Batch) -> DeliveryTimedOutError:
        why = self._why_not.get(queue, "the partition's leader is unknown")
        unsure = "; they may or may not be written" if batch.may_be_written else ""
        limit = f"within delivery_timeout_ms={self._settings.delivery_timeout_ms}"
        message = f"{_describe(queue, batch)} not acknowledged {limit}{unsure}: {why}"
        return DeliveryTimedOutError(message, may_be_written=batch.may_be_written)

    def _send_to(self, leader: int, queues: list[PartitionQueue], now_s: float) -> None:
        connection = self._brokers.opened(leader, PURPOSE)
        if connection is None:
            self._background.start(("connect", leader), self._connect(leader, queues))
            return
        api = PRODUCE if self._gate is None else self._gate.produce_api
        try:
            version = connection.version_for(api.key, api.versions, api.name)
        except UnsupportedByBrokerError as failure:
            self.abandon(DeliveryError(str(failure)))
            return
        while connection.is_open and connection.in_flight < self._settings.max_in_flight:
            sent, size_bytes = Sent(), 0
            for queue in queues:
                has_room = not size_bytes or size_bytes + queue.next_bytes <= self._settings.max_request_bytes
                batch = queue.take(now_s, self.traits, leader) if has_room else None
                if batch is not None:
                    key, version = self._topic_key(queue.topic, version)
                    sent[key, queue.partition] = (queue, batch)
                    size_bytes += len(batch.payload)
            if not sent:
                return
            self._send(connection, version, sent, now_s)

    def _topic_key(self, topic: str, version: int) -> tuple[TopicKey, int]:
        """Returns the topic's id if the version requires one. Without an id, falls back to an older version."""
        if version < TOPIC_IDS_FROM:
            return topic, version
        view = self._metadata.cached(topic)
        if view is None or view.id is None:
            return topic, TOPIC_IDS_FROM - 1
        return view.id, version

    def _send(self, connection: Connection, version: int, sent: Sent, now_s: float) -> None:
        topics: dict[TopicKey, list[tuple[int, bytes | bytearray | memoryview | None]]] = {}
        for (key, partition), (_, batch) in sent.items():
            topics.setdefault(key, []).append((partition, batch.payload))
        acks = self._settings.acks_number
        name, timeout_ms = self._settings.transactional_id, self._settings.request_timeout_ms
        body = encode_produce_request(version, name, acks, timeout_ms, list(topics.items()))
        if acks == 0:
            connection.send_unanswered(PRODUCE.key, version, body)
            for queue, batch in sent.values():
                self._acknowledge(queue, batch, UNKNOWN_OFFSET, -1)
            return
        deadline_s = min(batch.deadline_s for _, batch in sent.values())
        timeout_ms = min(timeout_ms, max(1, int((deadline_s - now_s) * 1000)))
        reply = connection.request(PRODUCE.key, version, body, what="producing", timeout_ms=timeout_ms)
        reply.add_done_callback(partial(self._on_reply, connection, version, sent))

    # Settling.

    def _on_reply(self, connection: Connection, version: int, sent: Sent, reply: asyncio.Future[memoryview]) -> None:
        if self.fatal is not None:
            return
        failure = None if reply.cancelled() else reply.exception()
        results: list[tuple[TopicKey, list[PartitionProduced]]] = []
        if failure is None:
            try:
                results = parse_produce_response(reply.result(), version).topics
            except MalformedRequest as damage:
                failure = damage
                connection.end()
        self._settle_all(sent, results)
        if self.fatal is not None:
            return
        for queue, batch in sent.values():
            self._why_not[queue] = str(failure or f"the broker at {connection.address} did not report this partition")
            self._retry(queue, batch, may_be_written=True)
        if failure is not None:
            self._metadata.mark_stale()
        self.wake()

    def _settle_all(self, sent: Sent, results: list[tuple[TopicKey, list[PartitionProduced]]]) -> None:
        """Settles and removes the batches in the reply, acknowledged ones first, because an error can be fatal."""
        flat = [(key, result) for key, partitions in results for result in partitions]
        for key, result in sorted(flat, key=lambda each: each[1].error != 0):
            found = sent.pop((key, result[0]), None)
            if found is not None and self.fatal is None:
                self._settle(*found, result)

    def _settle(self, queue: PartitionQueue, batch: Batch, result: PartitionProduced) -> None:
        error = error_code(result.error)
        outcome = outcome_of(error)
        if outcome is Outcome.WRITTEN:
            self._acknowledge(queue, batch, result.base_offset, result.log_append_time_ms)
            return
        reason = refused(error, f"{queue.topic}-{queue.partition}", _explain(result))
        self._why_not[queue] = str(reason)
        if error in LEADER_MOVED:
            self._metadata.mark_stale()
        match outcome:
            case Outcome.RETRY_NOT_WRITTEN:
                self._retry(queue, batch, may_be_written=False)
            case Outcome.RETRY_UNKNOWN:
                self._retry(queue, batch, may_be_written=True)
            case Outcome.CUT_IN_TWO if batch.count > 1:
                self._cut(queue, batch)
            case Outcome.CUT_IN_TWO:
                message = f"a record of {len(batch.payload)} bytes: {reason}"
                self._give_up(queue, batch, RecordTooLargeError(message, error, may_be_written=batch.may_be_written))
            case Outcome.OUT_OF_ORDER | Outcome.PRODUCER_FORGOTTEN:
                self._settle_sequence(queue, batch, error, result.log_start_offset)
            case Outcome.FENCED if self._gate is not None and error is not ErrorCode.producer_fenced:
                # Only the coordinator knows whether this producer was fenced or the batch is from an old transaction.
                self._give_up(queue, batch, DeliveryError(f"{_describe(queue, batch)} refused: {reason}", error))
            case Outcome.FENCED:
                self.abandon(ProducerFencedError(f"another producer took over: {reason}", error))
            case _:
                unsure = batch.may_be_written or outcome is Outcome.FAILED_UNKNOWN
                message = f"{_describe(queue, batch)} refused: {reason}"
                self._give_up(queue, batch, DeliveryError(message, error, may_be_written=unsure))

    def _settle_sequence(self, queue: PartitionQueue, batch: Batch, error: ErrorCode, log_start_offset: int) -> None:
        """The broker misses earlier batches. Harmless if those are still in flight or were deleted by retention."""
        first = queue.is_first_unresolved(batch)
        expired = (
            self._gate is None and error == ErrorCode.unknown_producer_id and log_start_offset > queue.last_acked_offset
        )
        if first and not expired:
            message = (
                f"{queue.topic}-{queue.partition} no longer has the records that its broker acknowledged to "
                f"this producer ({error_name(error)}), so continuing would leave a gap; check the broker's "
                "log, then create a new producer"
            )
            if self._gate is None:
                self.abandon(SequenceLostError(message, error))
            else:
                self._give_up(queue, batch, SequenceLostError(message, error))
            return
        if first and self._gate is None:
            queue.restart_numbering()
        self._retry(queue, batch, may_be_written=False)

    def _acknowledge(self, queue: PartitionQueue, batch: Batch, base_offset: int, append_time_ms: int) -> None:
        queue.acknowledged(batch, base_offset)
        batch.delivery.delivered(queue.topic, queue.partition, base_offset, append_time_ms)
        self._on_settled(batch, None)

    def _retry(self, queue: PartitionQueue, batch: Batch, *, may_be_written: bool) -> None:
        pause_s = self._settings.retry_backoff_ms / 1000
        queue.retry(batch, may_be_written=may_be_written, not_before_s=self.loop.time() + pause_s)
        self.wake(queue)

    def _cut(self, queue: PartitionQueue, batch: Batch) -> None:
        self._flushes.cut(batch, queue.cut(batch))
        self.wake(queue)

    def _give_up(self, queue: PartitionQueue, batch: Batch, reason: DeliveryError) -> None:
        queue.given_up(batch)
        batch.delivery.failed(reason)
        self._on_settled(batch, reason)
        if self._gate is not None:
            self._gate.batch_failed(reason)

    # Background tasks.

    async def _connect(self, leader: int, queues: list[PartitionQueue]) -> None:
        try:
            await self._brokers.connection(leader, PURPOSE)
        except ClientError as failure:
            for queue in queues:
                self._why_not[queue] = str(failure)
            self._metadata.mark_stale()
            # A broker that is not in the metadata fails at once, so without a pause this would spin.
            await asyncio.sleep(self._settings.retry_backoff_ms / 1000)

    def _refresh_metadata(self) -> None:
        self._background.start("metadata", self._refresh())

    async def _refresh(self) -> None:
        try:
            await self._metadata.refresh()
        except PASSING_FAILURES as failure:
            for queue in self._busy:
                self._why_not[queue] = str(failure)
        if self._metadata.needs_refresh or self._lacks_a_leader():
            # Without a pause this would repeat as fast as brokers reply.
            await asyncio.sleep(self._settings.retry_backoff_ms / 1000)

    def _lacks_a_leader(self) -> bool:
        return any(self._metadata.leader(queue.topic, queue.partition) is None for queue in self._busy)

    def _arm_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_s != float("inf"):
            self._timer = self.loop.call_at(at_s, self.wake)


def _describe(queue: PartitionQueue, batch: Batch) -> str:
    records = "1 record" if batch.count == 1 else f"{batch.count} records"
    return f"{records} for {queue.topic}-{queue.partition}"


def _explain(result: PartitionProduced) -> str | None:
    if result.record_errors:
        index, why = result.record_errors[0]
        return f"record {index} of the batch: {why or result.error_message or 'rejected'}"
    return result.error_message
