"""One task of a write: writes its rows in a transaction and leaves it open for the driver to end. Runs on a worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from ottla.client import PreparedTransaction, Producer
from ottla.client.errors import BrokerRefusedError
from ottla.client.transactions.transaction import Transaction
from ottla.protocol.model.errors import ErrorCode
from ottla.spark.loop_thread import LoopThread
from ottla.spark.options_text import OptionError
from ottla.spark.sink.columns import parts_of
from ottla.spark.sink.decisions import ids_of_run
from ottla.spark.sink.options import SinkOptions

CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes sent at a time, while the next rows arrive from the JVM."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Identifies a task within its query, run and batch."""

    query: str
    run: str
    batch: int
    task: int
    attempt: int

    @property
    def transactional_id(self) -> str:
        """Unique for each run and attempt, so that no other producer uses it while the batch is being decided."""
        return f"{ids_of_run(self.query, self.run)}{self.task}:{self.attempt}"


def task_place(query: str | None, batch: int | None) -> TaskIdentity:
    """Returns the identity of the current task. A batch write provides its own query and batch.

    Spark has them in properties that are not documented; a test pins their names.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs in a task"
    run = context.getLocalProperty("spark.jobGroup.id") or "batch"
    if query is None:
        query = context.getLocalProperty("sql.streaming.queryId")
        number = context.getLocalProperty("streaming.sql.batchId")
        if not query or number is None:
            raise RuntimeError(
                "this version of Spark does not pass the query and batch to tasks; use ottla.delivery=at-least-once"
            )
        batch = int(number)
    assert batch is not None, "a named write has a version"
    return TaskIdentity(query, run, batch, context.partitionId(), context.attemptNumber())


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combines small batches, so that one round trip carries many rows."""
    waiting: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= CHUNK_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def write_plain(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes with at-least-once delivery. Returns the number of rows when all are acknowledged."""
    with LoopThread() as thread:
        producer = Producer(options.servers, **{"client_id": "ottla-spark", **options.producer})
        thread.run(producer.start())
        try:
            return _send_all(thread, producer, options.topic, batches)
        finally:
            thread.run(producer.close())


def write_in_transaction(
    options: SinkOptions, transactional_id: str, batches: Iterable[pa.RecordBatch]
) -> tuple[int, PreparedTransaction | None]:
    """Returns the number of rows and their transaction, which is still open; None if there are no rows."""
    settings = {"client_id": "ottla-spark", **options.producer, "transactional_id": transactional_id}
    with LoopThread() as thread:
        producer = Producer(options.servers, **settings)
        try:
            thread.run(producer.start())
        except BrokerRefusedError as refusal:
            if refusal.error is not ErrorCode.invalid_transaction_timeout:
                raise
            name, timeout_ms = "kafka.transaction.timeout.ms", settings["transaction_timeout_ms"]
            raise OptionError(name, str(timeout_ms), "is larger than the brokers' transaction.max.timeout.ms") from None
        try:
            transaction = producer.transaction()
            thread.run(transaction.__aenter__())
            try:
                rows = _send_all(thread, transaction, options.topic, batches)
                return rows, thread.run(transaction.prepare())
            except BaseException as failure:
                thread.run(transaction.__aexit__(type(failure), failure, None))
                raise
        finally:
            thread.run(producer.close())


def _send_all(
    thread: LoopThread, sender: Producer | Transaction, topic: str | None, batches: Iterable[pa.RecordBatch]
) -> int:
    rows = 0
    sending = None
    for chunk in chunks(batches):
        if sending is not None:
            sending.result()
        sending = thread.submit(_send(sender, topic, chunk))
        rows += chunk.num_rows
    if sending is not None:
        sending.result()
    return rows


async def _send(sender: Producer | Transaction, topic: str | None, chunk: pa.Table) -> None:
    for part in parts_of(chunk, topic):
        await sender.send_table(part.topic, part.rows, partition=part.partition)
