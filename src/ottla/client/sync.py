"""Blocking clients for plain scripts and threads: the asyncio clients on a background event loop.

    with SyncProducer("127.0.0.1:9092") as producer:
        producer.send("orders", b"one", key=b"k")          # returns when it is acknowledged

    with SyncConsumer("127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            ...

Methods, arguments, errors and guarantees are those of `Producer`, `Consumer` and `Admin`, with blocking calls in place
of coroutines. Several threads may share a producer or an admin client. A consumer is for one thread at a time.

Ctrl-C ends the blocking call. Records that a consumer had taken for that call but did not return are fetched again.
"""

from __future__ import annotations

import asyncio
import atexit
import re
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla.client.admin.admin import Admin
from ottla.client.blocking_facade import Facade, blocking, on_loop, same_arguments
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.types import ConsumerRecord, TopicPartition
from ottla.client.errors import ClientError
from ottla.client.groups.offsets import OffsetAndMetadata
from ottla.client.groups.steps import Identity
from ottla.client.producer.deliveries import RecordMetadata, TablePart
from ottla.client.producer.producer import Producer
from ottla.client.transactions.transaction import Transaction
from ottla.protocol.records.record import HeaderRows

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
CHUNK_MAX = 500
Callback = Callable[[list[TopicPartition]], None]
Sending = Callable[..., Coroutine[Any, Any, "asyncio.Future[RecordMetadata]"]]


def _enqueued(sending: Sending) -> Callable[..., Coroutine[Any, Any, Future[RecordMetadata]]]:
    """Wraps `enqueue` to return a future for any thread. It cannot be cancelled: a record cannot be unsent."""

    async def work(client: Any, *arguments: Any) -> Future[RecordMetadata]:
        inner = await sending(client, *arguments)
        outer: Future[RecordMetadata] = Future()
        outer.set_running_or_notify_cancel()

        def settle(done: asyncio.Future[RecordMetadata]) -> None:
            failure = done.exception()
            if failure is None:
                outer.set_result(done.result())
            else:
                outer.set_exception(failure)

        inner.add_done_callback(settle)
        return outer

    return work


class SyncTransaction:
    """A transaction of a `SyncProducer`, for `with`: committed at the end of the block, aborted if it raises.

        with producer.transaction() as transaction:
            transaction.send("bills", b"one")
            transaction.send_offsets(consumer)

    `Transaction` is the asyncio counterpart.
    """

    def __init__(self, producer: SyncProducer, transaction: Transaction) -> None:
        self._producer = producer
        self._transaction = transaction

    def call(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Runs a coroutine function with the asyncio transaction."""
        return self._producer.call(lambda _: work(self._transaction))

    def __enter__(self) -> Self:
        self.call(Transaction.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call(lambda transaction: transaction.__aexit__(kind, error, trace))

    send = blocking(Transaction.send)
    commit = blocking(Transaction.commit)
    abort = blocking(Transaction.abort)
    prepare = blocking(Transaction.prepare)

    def enqueue(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Future[RecordMetadata]:
        """Waits only for room in the buffer. The commit waits for the acknowledgement."""
        work = _enqueued(Transaction.enqueue)
        found: Future[RecordMetadata] = self.call(
            lambda transaction: work(transaction, topic, value, key, headers, timestamp_ms, partition)
        )
        return found

    def send_table(self, topic: str, table: Any, **columns: Any) -> list[TablePart]:
        """Sends the rows of a table. `Producer.send_table` explains the columns."""
        found: list[TablePart] = self.call(lambda transaction: transaction.send_table(topic, table, **columns))
        return found

    def send_offsets(
        self, consumer: SyncConsumer, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None
    ) -> None:
        """Commits the positions of the consumer's group, or these offsets, together with the transaction."""
        asyncio_consumer = consumer.asyncio_consumer()
        self.call(lambda transaction: transaction.send_offsets(asyncio_consumer, offsets))


class SyncProducer(Facade):
    """A blocking `Producer`. If it is still open when the program ends, it is flushed and closed.

        with SyncProducer("127.0.0.1:9092") as producer:
            future = producer.enqueue("orders", b"one")
            future.result()

    Several threads may share it.
    """

    @same_arguments(Producer)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(lambda: Producer(*arguments, **settings))

    def _on_started(self) -> None:
        atexit.register(self._close_at_exit)

    async def _before_close(self) -> None:
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        if self._thread.is_of_this_process:
            self.close()

    send = blocking(Producer.send)
    send_table = blocking(Producer.send_table)
    flush = blocking(Producer.flush)
    partitions = blocking(Producer.partitions)

    def enqueue(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Future[RecordMetadata]:
        """Waits for room in the buffer and returns a future of the acknowledgement."""
        work = _enqueued(Producer.enqueue)
        return self.call(lambda producer: work(producer, topic, value, key, headers, timestamp_ms, partition))

    def transaction(self) -> SyncTransaction:
        """Returns a transaction for `with`: committed at the end of the block, aborted if it raises. One at a time."""

        async def create(producer: Producer) -> Transaction:
            return producer.transaction()

        return SyncTransaction(self, self.call(create))

    @property
    def acknowledged_count(self) -> int:
        """The number of acknowledged records so far (with acks=0, of sent records)."""
        client: Producer = self._client
        return client.acknowledged_count


class SyncConsumer(Facade):
    """A blocking `Consumer`, for one thread at a time.

        with SyncConsumer("127.0.0.1:9092", group_id="billing") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                print(record.value)

    The iterator waits for new records and never ends.
    """

    @same_arguments(Consumer)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(lambda: Consumer(*arguments, **settings))
        self._taken: deque[ConsumerRecord] = deque()
        """Records taken from the asyncio consumer but not returned yet, except for the first one if `_is_handed`."""
        self._is_handed = False
        self._given = 0
        """The number of records returned from the last chunk."""
        self._chunk = CHUNK_MAX
        self._was_called = False
        self._in_callback = threading.local()

    def asyncio_consumer(self) -> Consumer:
        """Returns the underlying consumer, with the program's positions. Use it only on its event loop."""

        async def itself(consumer: Consumer) -> Consumer:
            return consumer

        return self.call(itself)

    def call(self, work: Callable[[Any], Coroutine[Any, Any, T]], give_back: Callable[[T], None] | None = None) -> T:
        """Runs any call but a fetch with the program's positions: before records that were taken but not returned."""
        self._was_called = True
        unused = self._put_back()

        async def with_positions(consumer: Consumer) -> T:
            _rewind(consumer, unused)
            return await work(consumer)

        return super().call(with_positions, give_back)

    async def _before_close(self) -> None:
        _rewind(self._client, self._put_back())

    # Reading.

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """Waits for a record, without a timeout. Earlier records count as processed.

        Records are taken in chunks, which grow while the program only iterates. If the program makes calls in between,
        such as a commit after every 10 records, the chunks shrink to what is read between two calls, because the rest
        of a chunk would have to be fetched again.
        """
        self._drop_handed()
        if not self._taken:
            if not self._was_called:
                self._chunk = min(CHUNK_MAX, self._chunk * 2)
            self._was_called = False
            self._given = 0
            while not self._taken:
                self._take(self._chunk, None)
        record = self._taken[0]
        self._given += 1
        self._is_handed = True  # last: a signal must not interrupt anything after it
        return record

    def fetch_records(self, max_records: int = 500, timeout_ms: float | None = None) -> list[ConsumerRecord]:
        """Waits for a record, then returns up to `max_records` available ones, or none after the timeout."""
        self._drop_handed()
        if not self._taken:
            self._take(max_records, timeout_ms)
        records = list(islice(self._taken, max_records))
        rest = deque(islice(self._taken, max_records, None))
        self._taken = rest  # last: a signal must not interrupt anything after it
        return records

    def _take(self, max_records: int, timeout_ms: float | None) -> None:
        """Takes records into `_taken` on the loop, so that an interrupted caller loses nothing."""
        self._refuse_in_callback()

        async def work(consumer: Consumer) -> None:
            self._taken.extend(await consumer.fetch_records(max_records, timeout_ms))

        super().call(work)

    def _drop_handed(self) -> None:
        """Removes the record that the iterator returned last, because the program has processed it."""
        if self._is_handed:
            self._is_handed = False
            self._taken.popleft()

    def fetch_table(self, max_bytes: int = 64 * 1024 * 1024, timeout_ms: float | None = None) -> pyarrow.Table:
        """Like `fetch_records`, but returns a `pyarrow.Table` and applies no deserializers."""
        self._refuse_in_callback()
        return self.call(lambda consumer: consumer.fetch_table(max_bytes, timeout_ms), self._give_back_table)

    def _give_back_table(self, table: pyarrow.Table) -> None:
        columns = [table.column(name).to_pylist() for name in ("topic", "partition", "offset")]
        self._client.rewind(_first_offsets(zip(*columns, strict=True)))

    def _put_back(self) -> list[ConsumerRecord]:
        """Clears and returns the records that were taken but not returned; they are fetched again."""
        unused = list(islice(self._taken, int(self._is_handed), None))
        self._taken.clear()
        self._is_handed = False
        if unused:
            self._chunk = max(1, self._given)
        return unused

    # Rebalances.

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        *,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Subscribes like `Consumer.subscribe`. Callbacks run in a separate thread while the program waits for records.

        Callbacks may use this consumer to commit or to seek, but not to fetch.
        """
        named = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        wrapped: Any = {name: self._in_a_thread(each) for name, each in named.items() if each is not None}

        async def work(consumer: Consumer) -> None:
            consumer.subscribe(topics, **wrapped)

        self.call(work)

    def _in_a_thread(self, callback: Callback) -> Callable[[list[TopicPartition]], Coroutine[Any, Any, None]]:
        def marked(partitions: list[TopicPartition]) -> None:
            self._in_callback.is_set = True
            try:
                callback(partitions)
            finally:
                self._in_callback.is_set = False

        async def call(partitions: list[TopicPartition]) -> None:
            await asyncio.to_thread(marked, partitions)

        return call

    def _refuse_in_callback(self) -> None:
        if getattr(self._in_callback, "is_set", False):
            raise ClientError("a rebalance callback cannot fetch records")

    # The same as in the asyncio consumer.

    assign = on_loop(Consumer.assign)
    seek = on_loop(Consumer.seek)
    pause = on_loop(Consumer.pause)
    resume = on_loop(Consumer.resume)
    seek_to_beginning = blocking(Consumer.seek_to_beginning)
    seek_to_end = blocking(Consumer.seek_to_end)
    seek_to_committed = blocking(Consumer.seek_to_committed)
    position = blocking(Consumer.position)
    commit = blocking(Consumer.commit)
    committed = blocking(Consumer.committed)
    offsets_for_time = blocking(Consumer.offsets_for_time)
    beginning_offsets = blocking(Consumer.beginning_offsets)
    end_offsets = blocking(Consumer.end_offsets)
    partitions = blocking(Consumer.partitions)
    fetch_range = blocking(Consumer.fetch_range)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions, sorted."""
        return self.call(_property(lambda consumer: consumer.assignment))

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions, sorted."""
        return self.call(_property(lambda consumer: consumer.paused))

    @property
    def in_group(self) -> bool:
        """Whether this consumer is a member and has its whole assignment, which may be empty."""
        return self.call(_property(lambda consumer: consumer.in_group))

    @property
    def group_identity(self) -> Identity | None:
        """The identity that signs this consumer's commits, or None if it is not a member."""
        return self.call(_property(lambda consumer: consumer.group_identity))


def _rewind(consumer: Consumer, unused: list[ConsumerRecord]) -> None:
    """Rewinds to records that the program did not get, so that they are fetched again. Runs on the loop."""
    if unused:
        consumer.rewind(_first_offsets((each.topic, each.partition, each.offset) for each in unused))


def _first_offsets(rows: Iterable[tuple[str, int, int]]) -> dict[TopicPartition, int]:
    first: dict[TopicPartition, int] = {}
    for topic, partition, offset in rows:
        first.setdefault(TopicPartition(topic, partition), offset)
    return first


def _property(read: Callable[[Consumer], T]) -> Callable[[Consumer], Coroutine[Any, Any, T]]:
    async def work(consumer: Consumer) -> T:
        return read(consumer)

    return work


class SyncAdmin(Facade):
    """A blocking `Admin`.

        with SyncAdmin("127.0.0.1:9092") as admin:
            admin.create_topic("orders", partitions=3)

    Several threads may share it.
    """

    @same_arguments(Admin)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(lambda: Admin(*arguments, **settings))

    create_topic = blocking(Admin.create_topic)
    delete_topic = blocking(Admin.delete_topic)
    list_topics = blocking(Admin.list_topics)
    describe_topic = blocking(Admin.describe_topic)
    create_partitions = blocking(Admin.create_partitions)
    delete_records = blocking(Admin.delete_records)
    describe_configs = blocking(Admin.describe_configs)
    describe_topic_configs = blocking(Admin.describe_topic_configs)
    alter_configs = blocking(Admin.alter_configs)
    describe_cluster = blocking(Admin.describe_cluster)
    describe_log_dirs = blocking(Admin.describe_log_dirs)
    describe_partitions = blocking(Admin.describe_partitions)
    describe_all_partitions = blocking(Admin.describe_all_partitions)
    alter_partition_reassignments = blocking(Admin.alter_partition_reassignments)
    list_partition_reassignments = blocking(Admin.list_partition_reassignments)
    elect_leaders = blocking(Admin.elect_leaders)
    list_groups = blocking(Admin.list_groups)
    describe_groups = blocking(Admin.describe_groups)
    describe_group = blocking(Admin.describe_group)
    delete_groups = blocking(Admin.delete_groups)
    group_lag = blocking(Admin.group_lag)
    group_lags = blocking(Admin.group_lags)
    group_offsets = blocking(Admin.group_offsets)
    all_group_offsets = blocking(Admin.all_group_offsets)
    alter_group_offsets = blocking(Admin.alter_group_offsets)
    delete_group_offsets = blocking(Admin.delete_group_offsets)
    log_ends = blocking(Admin.log_ends)
    offsets_for_time = blocking(Admin.offsets_for_time)
    list_transactions = blocking(Admin.list_transactions)
    describe_producers = blocking(Admin.describe_producers)
    describe_transactions = blocking(Admin.describe_transactions)
    describe_transaction = blocking(Admin.describe_transaction)
    find_hanging_transactions = blocking(Admin.find_hanging_transactions)
    coordinated_by = blocking(Admin.coordinated_by)
    fence_producer = blocking(Admin.fence_producer)
    abort_in_partition = blocking(Admin.abort_in_partition)
    set_scram_password = blocking(Admin.set_scram_password)
    delete_scram_user = blocking(Admin.delete_scram_user)
    list_scram_users = blocking(Admin.list_scram_users)
