"""One transaction of a producer, as a program sees it: a block, committed at its end, aborted by an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ottla.client.deliveries import RecordMetadata, TablePart
from ottla.client.errors import ClientError
from ottla.client.group_offsets import OffsetAndMetadata
from ottla.client.prepared import PreparedTransaction
from ottla.client.transactions import Transactions
from ottla.records.record import HeaderRows

if TYPE_CHECKING:
    import pyarrow

    from ottla.client.consumer import Consumer
    from ottla.client.producer import Producer


class Transaction:
    """Of `Producer.transaction()`. It sends as the producer does."""

    def __init__(self, producer: Producer, transactions: Transactions) -> None:
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
                raise failure from error  # what the coordinator says is nearer to the cause
            # The program's own exception is on its way up; the producer raises this one at its next use.

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: HeaderRows = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Returns when the record is acknowledged; readers of committed records see it after the commit."""
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
        """Waits for room in the buffer only. The commit waits for the acknowledgement."""
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
        self._transactions.require_open(self._number)
        return self._producer.send_nowait(topic, value, key, headers, timestamp_ms, partition)

    async def send_table(
        self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch, **columns: Any
    ) -> list[TablePart]:
        """`Producer.send_table` explains the columns."""
        self._transactions.require_open(self._number)
        return await self._producer.send_table(topic, table, **columns)

    async def send_offsets(
        self, consumer: Consumer, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None
    ) -> None:
        """The consumer's group has read up to its positions, or these offsets, if the transaction is committed.

        The consumer needs `auto_commit=False` and `isolation_level="read_committed"`. CommitFailedError: the group has
        gone on without it, and the transaction can only be aborted.
        """
        self._transactions.require_open(self._number)
        await self._transactions.send_offsets(consumer.progress(offsets))

    async def commit(self) -> None:
        """All or nothing: TransactionAbortedError if it is nothing. The end of the block does it too."""
        self._is_over = True
        await self._transactions.end(commit=True)

    async def prepare(self) -> PreparedTransaction | None:
        """Waits until all of it is acknowledged, and leaves it open, for `PreparedTransactions` to end: also after this
        producer is closed. It writes no more. None if nothing was sent: then it can go on with another transaction.
        """
        self._transactions.require_open(self._number)
        self._is_over = True
        return await self._transactions.prepare()

    async def abort(self) -> None:
        """Nobody who reads committed records sees any of it. The block goes on, without a transaction."""
        self._is_over = True
        await self._transactions.end(commit=False)
