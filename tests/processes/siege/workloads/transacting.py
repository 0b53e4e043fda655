"""Transactional producers of two libraries behind one interface, each with a reader of committed records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ottla.client import Consumer as OwnConsumer
from ottla.client import Producer as OwnProducer
from ottla.client.errors import ClientError, DeliveryError
from ottla.client.transactions.transaction import Transaction

CALL_S = 10.0
PATIENCE_S = 90.0
"""How long a call is retried. A producer that gets nowhere is replaced by another one."""
READ_S = 3.0
TRANSACTION_TIMEOUT_MS = 15_000
REQUEST_TIMEOUT_MS = 5_000
RECORDS_MAX = 2000

Where = tuple[str, int]


class AbortNeededError(Exception):
    """The transaction has failed and has to be aborted."""


class ProducerOverError(Exception):
    """This producer cannot continue. `is_aborted`: its transaction is certainly not committed."""

    def __init__(self, reason: object, *, is_aborted: bool = False) -> None:
        super().__init__(str(reason))
        self.is_aborted = is_aborted


class Found(NamedTuple):
    """The result of a read."""

    records: list[tuple[int, str]]
    end: int
    is_to_the_end: bool


class Transactor(Protocol):
    """A producer with one transaction at a time. Errors are AbortNeededError or ProducerOverError."""

    async def start(self) -> None: ...
    async def begin(self) -> None: ...
    async def append(self, where: Where, value: str) -> int:
        """Returns the offset once the record is acknowledged, -1 if it is not known."""

    async def commit(self) -> None: ...
    async def abort(self) -> None: ...
    async def read(self, where: Where, first: int) -> Found:
        """Reads committed records up to the stable end, or as many as come in time."""

    async def close(self) -> None:
        """Ends it without ending its transaction."""


class ConfluentTransactor:
    """librdkafka. All calls block, and run on a thread."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        shared = {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500}
        self._producer = Producer(
            {
                **shared,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS * 2,
                "linger.ms": 0,
            }
        )
        self._consumer = Consumer(
            {
                **shared,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )

    async def start(self) -> None:
        await self._call(lambda: self._producer.init_transactions(CALL_S))

    async def begin(self) -> None:
        await self._call(self._producer.begin_transaction)

    async def append(self, where: Where, value: str) -> int:
        return await asyncio.to_thread(self._append, where, value)

    def _append(self, where: Where, value: str) -> int:
        done: list[tuple[KafkaError | None, int | None]] = []

        def report(error: KafkaError | None, message: Message) -> None:
            done.append((error, message.offset()))

        try:
            self._producer.produce(where[0], value, partition=where[1], on_delivery=report)
            while not done:
                self._producer.poll(0.05)
        except KafkaException as problem:
            raise _meant(problem.args[0]) from problem
        error, offset = done[0]
        if error is not None:
            raise AbortNeededError(error.name())
        return -1 if offset is None else int(offset)

    async def commit(self) -> None:
        await self._call(lambda: self._producer.commit_transaction(CALL_S))

    async def abort(self) -> None:
        await self._call(lambda: self._producer.abort_transaction(CALL_S))

    async def _call(self, call: Callable[[], object]) -> None:
        await asyncio.to_thread(self._retried, call)

    def _retried(self, call: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                call()
                return
            except KafkaException as problem:
                error = problem.args[0]
                if not error.retriable() or time.monotonic() > deadline_s:
                    raise _meant(error) from problem

    async def read(self, where: Where, first: int) -> Found:
        return await asyncio.to_thread(self._read, where, first)

    def _read(self, where: Where, first: int) -> Found:
        self._consumer.assign([TopicPartition(*where, first)])
        records: list[tuple[int, str]] = []
        position, deadline_s = first, time.monotonic() + READ_S
        while time.monotonic() < deadline_s:
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                offset = message.offset() or 0
                records.append((offset, (message.value() or b"").decode()))
                position = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                return Found(records, max(position, message.offset() or 0), is_to_the_end=True)
        return Found(records, position, is_to_the_end=False)

    async def close(self) -> None:
        await asyncio.to_thread(self._consumer.close)


def _meant(error: Any) -> Exception:
    return AbortNeededError(error.name()) if error.txn_requires_abort() else ProducerOverError(error.name())


class OwnTransactor:
    """Ottla's own client."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        shared: dict[str, Any] = {"request_timeout_ms": REQUEST_TIMEOUT_MS, "connect_timeout_ms": 2_000}
        self._producer = OwnProducer(
            bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=TRANSACTION_TIMEOUT_MS,
            linger_ms=0,
            **shared,
        )
        self._consumer = OwnConsumer(
            bootstrap, auto_offset_reset="none", isolation_level="read_committed", fetch_max_wait_ms=50, **shared
        )
        self._open: Transaction | None = None

    async def start(self) -> None:
        try:
            await asyncio.wait_for(self._producer.start(), PATIENCE_S)
            await asyncio.wait_for(self._consumer.start(), PATIENCE_S)
        except (ClientError, TimeoutError) as problem:
            raise ProducerOverError(problem, is_aborted=True) from problem

    async def begin(self) -> None:
        self._open = self._producer.transaction()
        try:
            await self._open.__aenter__()
        except ClientError as problem:
            raise ProducerOverError(problem, is_aborted=True) from problem

    async def append(self, where: Where, value: str) -> int:
        assert self._open is not None
        try:
            return (await self._open.send(where[0], value.encode(), partition=where[1])).offset
        except ClientError as problem:
            raise AbortNeededError(type(problem).__name__) from problem

    async def commit(self) -> None:
        assert self._open is not None
        await self._end(self._open.commit())

    async def abort(self) -> None:
        assert self._open is not None
        await self._end(self._open.abort())

    async def _end(self, ending: Any) -> None:
        try:
            await ending
        except ClientError as problem:
            is_aborted = isinstance(problem, DeliveryError) and not problem.may_be_written
            raise ProducerOverError(f"{type(problem).__name__}: {problem}", is_aborted=is_aborted) from problem

    async def read(self, where: Where, first: int) -> Found:
        records: list[tuple[int, str]] = []
        position, is_to_the_end = first, False
        deadline_s = time.monotonic() + READ_S
        try:
            self._consumer.assign([where])
            self._consumer.seek(where, first)
            (end,) = (await asyncio.wait_for(self._consumer.end_offsets([where]), READ_S)).values()
            while time.monotonic() < deadline_s and position < end:
                found = await self._consumer.fetch_records(RECORDS_MAX, 200)
                records += ((record.offset, (record.value or b"").decode()) for record in found)
                position = await self._consumer.position(where)
            is_to_the_end = position == end
        except (ClientError, TimeoutError):
            is_to_the_end = False  # the next read continues here
        return Found(records, max(position, records[-1][0] + 1 if records else first), is_to_the_end)

    async def close(self) -> None:
        await asyncio.wait_for(self._consumer.close(), 10)


TRANSACTORS: dict[str, Callable[[str, str], Transactor]] = {
    "librdkafka": ConfluentTransactor,
    "ottla": OwnTransactor,
}
