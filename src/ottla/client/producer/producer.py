"""The producer: by record and by Arrow table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from ottla.client.brokers import Brokers
from ottla.client.errors import (
    BufferFullError,
    ClientClosedError,
    ClientError,
    DeliveryError,
    DeliveryTimedOutError,
    RecordTooLargeError,
    TransactionStateError,
)
from ottla.client.metadata import PASSING_FAILURES, Metadata, TopicView
from ottla.client.producer.batches import Batch, Identity
from ottla.client.producer.buffer_space import BufferSpace
from ottla.client.producer.deliveries import Delivery, RecordMetadata, TableDelivery, TablePart
from ottla.client.producer.flushes import Flushes
from ottla.client.producer.partitioner import Partitioner, StickyChoice, murmur2_partitioner
from ottla.client.producer.placement import Placement
from ottla.client.producer.producer_ids import get_identity
from ottla.client.producer.sender import Sender
from ottla.client.producer.settings import Acks, ProducerSettings
from ottla.client.serialization import Serializer, check_headers, to_bytes
from ottla.client.transactions.coordinator import TransactionCoordinators
from ottla.client.transactions.producer_transactions import Transactions
from ottla.client.transactions.transaction import Transaction
from ottla.net.security import NO_SECURITY, ConnectionSecurity
from ottla.protocol.records.record import HeaderRows

if TYPE_CHECKING:
    import pyarrow

    from ottla.client.producer.tables import TableBatch

T = TypeVar("T")


class _PendingRecord(NamedTuple):
    """A record of a topic whose partitions are not known yet."""

    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: HeaderRows
    timestamp_ms: int
    future: asyncio.Future[RecordMetadata]


class Producer:
    """Writes records. Start it with `async with`, or with `start` and `close`.

        async with Producer("127.0.0.1:9092") as producer:
            where = await producer.send("orders", b"one", key=b"k")

    With idempotence (the default), each record is written exactly once and in order, across lost connections and broker
    failures. The topic's durability class determines what an acknowledgement guarantees. With a `transactional_id`,
    records are sent in transactions: read_committed consumers see all records of a transaction or none.

        async with Producer("127.0.0.1:9092", transactional_id="billing-1") as producer:
            async with producer.transaction() as transaction:
                await transaction.send("bills", b"one")
                await transaction.send_offsets(consumer)

    `ProducerSettings` explains the settings.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        acks: Acks = "all",
        idempotence: bool = True,
        compression: str = "none",
        compression_level: int | None = None,
        linger_ms: float = 0,
        batch_bytes: int = 128 * 1024,
        buffer_bytes: int = 64 * 1024 * 1024,
        max_in_flight: int = 5,
        max_request_bytes: int = 1024 * 1024,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        partitioner: Partitioner = murmur2_partitioner,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        client_id: str = "ottla-producer",
        connect_timeout_ms: int = 10_000,
        metadata_max_age_ms: int = 300_000,
        security: ConnectionSecurity = NO_SECURITY,
    ) -> None:
        self._settings = ProducerSettings(
            acks=acks,
            idempotence=idempotence,
            compression=compression,
            compression_level=compression_level,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            max_in_flight=max_in_flight,
            max_request_bytes=max_request_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            partitioner=partitioner,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._brokers = Brokers(
            bootstrap_servers,
            client_id=client_id,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            security=security,
        )
        self._metadata = Metadata(self._brokers, allow_auto_create=True, max_age_ms=metadata_max_age_ms)
        self._room = BufferSpace(buffer_bytes)
        self._flushes = Flushes()
        self._sticky = StickyChoice()
        self._sender: Sender | None = None
        self._placement: Placement | None = None
        self._transactions: Transactions | None = None
        if transactional_id is not None:
            asking = TransactionCoordinators(self._brokers, self._metadata, transactional_id, delivery_timeout_ms)
            self._transactions = Transactions(self._settings, asking, self.flush, self._drop)
        self._unplaced: dict[str, list[_PendingRecord]] = {}
        self._placing: dict[str, asyncio.Task[None]] = {}
        self._first_failure: DeliveryError | None = None
        self._acknowledged = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except ClientError:
            if error is None:  # otherwise the first exception is already propagating
                raise

    async def start(self) -> None:
        """Connects, and gets a producer id if idempotence is on. Raises NoBrokerError if no broker answers.

        With a `transactional_id`, fences the previous producer and waits until its open transaction is aborted.
        """
        if self._sender is not None:
            return
        try:
            await self._metadata.refresh()
            identity = await self._get_identity()
        except BaseException:
            await self._brokers.disconnect()  # so that it can be started again
            raise
        self._sender = Sender(
            self._settings,
            self._brokers,
            self._metadata,
            identity,
            self._on_settled,
            self._flushes,
            self._transactions,
        )
        self._placement = Placement(self._settings, self._sender, self._room, self._sticky)
        if self._transactions is not None:
            self._transactions.attach(self._sender)

    async def _get_identity(self) -> Identity | None:
        if self._transactions is not None:
            return await self._transactions.start()
        return await get_identity(self._brokers, self._settings) if self._settings.idempotence else None

    def transaction(self) -> Transaction:
        """Returns a transaction for `async with`, committed at the end of the block or aborted if it raises.

        A producer has one transaction at a time. Raises TransactionAbortedError if it could not be committed; it can be
        retried. Raises ProducerFencedError if another producer uses the `transactional_id` or this one took too long;
        this producer has then stopped.
        """
        self._require_sender()
        if self._transactions is None:
            raise TransactionStateError(
                "this producer is not transactional; create it with Producer(..., transactional_id=...)"
            )
        return Transaction(self, self._transactions)

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Returns when the record is acknowledged. Raises DeliveryError if it will not be."""
        return await self._outcome(await self.enqueue(topic, value, key, headers, timestamp_ms, partition))

    async def enqueue(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Waits for room in the buffer and returns a future of the acknowledgement."""
        used_before = self._room.used_bytes
        number = self._open_transaction()
        while self._room.is_full:
            self._require_sender()
            await self._room.wait()
            self._open_transaction(number)
        future = self.send_nowait(topic, value, key, headers, timestamp_ms, partition)
        if topic in self._unplaced:
            # The topic's metadata is being fetched. Records waiting for it are not in the buffer: bound them here.
            await self._until_placed(topic)
        batch_bytes = self._settings.batch_bytes
        if self._room.used_bytes // batch_bytes != used_before // batch_bytes:
            await asyncio.sleep(0)  # a batch is full: let it be sent, otherwise a loop of enqueues would only buffer
        return future

    def send_nowait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Buffers the record or raises BufferFullError. Records of one partition keep their order.

        Without serializers, keys and values must be bytes or None; anything else raises TypeError.
        """
        sender = self._require_sender()
        self._open_transaction()
        assert self._placement is not None
        if self._room.is_full:
            raise BufferFullError(
                f"the buffer is full: {self._room.used_bytes} bytes await acknowledgement; `enqueue` waits for space"
            )
        key = to_bytes("key", topic, key, self._key_serializer)
        value = to_bytes("value", topic, value, self._value_serializer)
        if headers:
            check_headers(topic, headers)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        size_bytes = (0 if value is None else len(value)) + (0 if key is None else len(key))
        if size_bytes > self._settings.max_request_bytes:
            limit = f"max_request_bytes={self._settings.max_request_bytes}"
            raise RecordTooLargeError(f"a record of {size_bytes} bytes is larger than the producer's {limit}")
        future: asyncio.Future[RecordMetadata] = sender.loop.create_future()
        view = self._metadata.cached(topic)
        if view is None or topic in self._unplaced:
            self._place_later(topic, _PendingRecord(partition, key, value, headers, timestamp_ms, future))
        else:
            self._placement.place(view, partition, key, value, headers, timestamp_ms, future)
        return future

    async def send_table(
        self,
        topic: str,
        table: pyarrow.Table | pyarrow.RecordBatch,
        *,
        key: str | None = "key",
        value: str | None = "value",
        timestamp: str | None = "timestamp",
        headers: str | None = "headers",
        partition: int | None = None,
    ) -> list[TablePart]:
        """Sends the rows of a table. Returns their positions in the log when all are acknowledged.

        The arguments name the columns to send. Columns with the default names may be missing, and None omits a column.
        Keys and values are binary or string columns, timestamps are integers (milliseconds) or Arrow timestamps, and
        headers are maps or lists of structs of key and value. Rows of one partition keep their order.
        """
        from ottla.client.producer.tables import named_columns, table_batches

        sender = self._require_sender()
        number = self._open_transaction()
        view = await self._metadata.topic(topic, timeout_ms=self._settings.delivery_timeout_ms)
        await self._until_placed(topic)
        columns = named_columns(table, key, value, timestamp, headers)
        delivery = TableDelivery()
        for order, piece in enumerate(table_batches(columns, view, partition, self._settings, self._sticky)):
            while self._room.is_full:
                await self._room.wait()
            self._require_sender()
            if delivery.done.done():
                break  # an earlier part failed
            self._open_transaction(number)
            self._append_piece(sender, topic, piece, delivery.part(order, piece.record_count))
            await asyncio.sleep(0)
        delivery.all_handed_over()
        return await self._outcome(asyncio.shield(delivery.done))

    def _append_piece(self, sender: Sender, topic: str, piece: TableBatch, delivery: Delivery) -> None:
        assert self._placement is not None
        queue = sender.queue(topic, piece.partition)
        queue.close_open(sender.traits)
        size_bytes = len(piece.payload)
        queue.append(Batch(piece.payload, delivery, size_bytes, self._placement.deadline_s()))
        self._room.take(size_bytes)
        sender.wake(queue)

    async def flush(self) -> None:
        """Waits until everything sent so far is acknowledged or failed.

        Raises the first failure since the last flush, unless a `send` or `send_table` has already raised it.
        """
        sender = self._require_sender(even_if_failed=True)
        for topic in list(self._placing):
            await self._until_placed(topic)
        await self._flushes.settled_all(sender.close_and_list())
        failure, self._first_failure = self._first_failure, None
        if failure is not None:
            raise failure

    @property
    def acknowledged_count(self) -> int:
        """The number of acknowledged records so far (with acks=0, of sent records)."""
        return self._acknowledged

    async def partitions(self, topic: str) -> list[int]:
        """Returns the topic's partitions. Creates the topic if the broker creates topics on first use."""
        view = await self._metadata.topic(topic, timeout_ms=self._settings.delivery_timeout_ms)
        return list(view.partitions)

    async def close(self) -> None:
        """Flushes, then disconnects. Aborts an open transaction. Raises what `flush` raises."""
        if self._closed:
            return
        try:
            if self._transactions is not None and self._sender is not None:
                await self._transactions.close()
            if self._sender is not None:
                await self.flush()
        finally:
            self._closed = True
            if self._sender is not None:
                self._sender.abandon(DeliveryError("the producer was closed before these records were acknowledged"))
                self._sender.stop()
            for task in self._placing.values():
                task.cancel()
            self._room.wake_all()
            await self._brokers.close()

    def _place_later(self, topic: str, record: _PendingRecord) -> None:
        """Keeps a record until the metadata arrives. Such records do not count in the buffer."""
        self._unplaced.setdefault(topic, []).append(record)
        if topic not in self._placing:
            task = self._placing[topic] = asyncio.create_task(self._place_when_known(topic))
            task.add_done_callback(lambda _: self._placing.pop(topic, None))

    async def _place_when_known(self, topic: str) -> None:
        failure: DeliveryError | None = None
        view: TopicView | None = None
        try:
            view = await self._metadata.topic(topic, timeout_ms=self._settings.delivery_timeout_ms)
        except PASSING_FAILURES as cause:
            failure = DeliveryTimedOutError(
                f"no metadata within delivery_timeout_ms={self._settings.delivery_timeout_ms}: {cause}"
            )
            failure.__cause__ = cause
        except ClientError as cause:
            failure = DeliveryError(str(cause), getattr(cause, "error", None))
            failure.__cause__ = cause
        for record in self._unplaced.pop(topic, []):
            if view is not None:
                failure = self._try_place(view, record)
            if failure is not None:
                self._fail_unplaced(record, failure)

    def _fail_unplaced(self, record: _PendingRecord, failure: DeliveryError) -> None:
        self._first_failure = self._first_failure or failure
        if not record.future.done():
            record.future.set_exception(failure)
            record.future.exception()  # marks it as retrieved; `flush` raises it too
        if self._transactions is not None:
            self._transactions.batch_failed(failure)

    async def _drop(self, reason: DeliveryError) -> None:
        """Gives up unsent records of an aborted transaction and waits for those in flight."""
        sender = self._require_sender(even_if_failed=True)
        unplaced, self._unplaced = self._unplaced, {}
        for record in chain.from_iterable(unplaced.values()):
            self._fail_unplaced(record, reason)
        sender.drop(reason)
        await self._flushes.settled_all(sender.close_and_list())
        self._first_failure = None

    def _try_place(self, view: TopicView, record: _PendingRecord) -> DeliveryError | None:
        assert self._placement is not None
        try:
            self._require_sender()
            self._placement.place(view, *record)
        except DeliveryError as failure:
            return failure
        except (ClientError, TypeError, ValueError, OverflowError) as cause:
            return DeliveryError(str(cause))
        return None

    async def _until_placed(self, topic: str) -> None:
        task = self._placing.get(topic)
        if task is not None:
            await asyncio.shield(task)

    async def _outcome(self, future: asyncio.Future[T]) -> T:
        """Awaits the future. A failure raised here is not raised again by `flush`."""
        try:
            return await future
        except DeliveryError as failure:
            if self._first_failure is failure:
                self._first_failure = None
            raise

    def _on_settled(self, batch: Batch, failure: DeliveryError | None) -> None:
        if failure is None:
            self._acknowledged += batch.count
        elif self._first_failure is None:
            self._first_failure = failure
        self._flushes.settled(batch)
        self._room.give_back(batch.buffered_bytes)

    def _open_transaction(self, number: int | None = None) -> int | None:
        """Returns the number of the open transaction. Raises if it does not accept records or is not `number`."""
        if self._transactions is None:
            return None
        self._transactions.require_open(number)
        return self._transactions.number

    def _require_sender(self, even_if_failed: bool = False) -> Sender:
        if self._closed:
            raise ClientClosedError("the producer is closed")
        if self._sender is None:
            raise ClientClosedError("the producer was not started: use `async with Producer(...)` or `await start()`")
        if self._sender.fatal is not None and not even_if_failed:
            raise self._sender.fatal
        return self._sender
