"""One transaction of a producer: a block that is committed at its end and aborted by an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ottla.client.errors import ClientError
from ottla.client.groups.offsets import OffsetAndMetadata
from ottla.client.producer.deliveries import RecordMetadata, TablePart
from ottla.client.transactions.prepared_transactions import PreparedTransaction
from ottla.client.transactions.producer_transactions import Transactions
from ottla.protocol.records.record import HeaderRows

if TYPE_CHECKING:
    import pyarrow

    from ottla.client.consumer.consumer import Consumer


class RecordSender(Protocol):
    """The methods of a producer that a transaction sends with."""

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Sends a record and waits for its acknowledgement."""
        ...

    async def enqueue(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queues a record, waiting for room, and returns a future of its acknowledgement."""
        ...

    def send_nowait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queues a record at once, or raises an error if there is no room."""
        ...

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
        """Sends the rows of a table and waits for their acknowledgements."""
        ...


class Transaction:
    """A transaction, created by `Producer.transaction()`. It sends like the producer.

        async with producer.transaction() as transaction:
            await transaction.send("bills", b"one")
            await transaction.send_offsets(consumer)

    Leaving the block commits.
    """

    def __init__(self, producer: RecordSender, transactions: Transactions) -> None:
        self._producer = producer
        self._transactions = transactions
        self._number: int | None = None
        self._is_over = False

    async def __aenter__(self) -> Self:
        await self._transactions.begin()
        self._number = self._transactions.number
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except ClientError as failure:
            if isinstance(error, ClientError):
                raise failure from error  # the coordinator's error is closer to the cause
            # The program's own exception is propagating; the producer raises this one at its next use.

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Returns when the record is acknowledged. Consumers with read_committed see it after the commit."""
        self._transactions.require_open(self._number)
        return await self._producer.send(topic, value, key, headers, timestamp_ms, partition)

    async def enqueue(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Waits only for room in the buffer. The commit waits for the acknowledgement."""
        self._transactions.require_open(self._number)
        return await self._producer.enqueue(topic, value, key, headers, timestamp_ms, partition)

    def send_nowait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Buffers the record or raises BufferFullError. The commit waits for the acknowledgement."""
        self._transactions.require_open(self._number)
        return self._producer.send_nowait(topic, value, key, headers, timestamp_ms, partition)

    async def send_table(
        self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch, **columns: Any
    ) -> list[TablePart]:
        """Sends the rows of a table. `Producer.send_table` explains the columns."""
        self._transactions.require_open(self._number)
        return await self._producer.send_table(topic, table, **columns)

    async def send_offsets(
        self, consumer: Consumer, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None
    ) -> None:
        """Commits the positions of the consumer's group, or these offsets, together with the transaction.

        The consumer needs `auto_commit=False` and `isolation_level="read_committed"`. Raises CommitFailedError if the
        group continued without the consumer; the transaction can then only be aborted.
        """
        self._transactions.require_open(self._number)
        await self._transactions.send_offsets(consumer.progress(offsets))

    async def commit(self) -> None:
        """Commits everything, or aborts and raises TransactionAbortedError. The end of the block commits too."""
        self._is_over = True
        await self._transactions.end(commit=True)

    async def prepare(self) -> PreparedTransaction | None:
        """Waits until everything is acknowledged and leaves the transaction open for `PreparedTransactions` to end.

        It stays open even after this producer is closed. The producer cannot write any more. Returns None if nothing
        was sent; the producer can then begin another transaction.
        """
        self._transactions.require_open(self._number)
        self._is_over = True
        return await self._transactions.prepare()

    async def abort(self) -> None:
        """Aborts: read_committed consumers see none of it. The block continues without a transaction."""
        self._is_over = True
        await self._transactions.end(commit=False)
