"""The sink: `df.write.format("ottla")` and `df.writeStream.format("ottla")`."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.client.errors import ClientError
from ottla.spark.options_text import OptionError
from ottla.spark.sink.columns import check_columns
from ottla.spark.sink.commit import SinkCommit, TaskWrite, end_all
from ottla.spark.sink.options import read_sink_options
from ottla.spark.sink.task import TaskIdentity, task_place, write_in_transaction, write_plain
from ottla.spark.user_errors import in_one_sentence
from ottla.spark.worker_pickle import WorkerPickle

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ottla.spark.sink.options import SinkOptions

log = logging.getLogger("ottla.spark")
Messages = list[WriterCommitMessage | None]


class StreamWriter(WorkerPickle, DataSourceStreamArrowWriter):
    """Writes each micro-batch exactly once. Readers of committed records see the rows of one task at a time."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = read_sink_options(options, streaming=True)
        check_columns(schema, self._options.topic)

    @in_one_sentence
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes the rows of one task, in a transaction that stays open until `commit` if writing exactly once."""
        if not self._options.exactly_once:
            return TaskWrite("", "", 0, 0, write_plain(self._options, iterator), False, None)
        place = task_place(None, None)
        return write_task(self._options, self.committing(place.query, place.run), place, iterator)

    @in_one_sentence
    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commits the transactions of all tasks of a micro-batch. A repeated call for the batch changes nothing."""
        writes = told(messages)
        if self._options.exactly_once and writes:
            asyncio.run(self.committing(writes[0].query, writes[0].run).commit(batchId, writes))

    @in_one_sentence
    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Aborts the transactions of the tasks. A failure is only logged: the next run aborts what stays open."""
        writes = told(messages)
        if self._options.exactly_once and writes:
            abort_quietly(self.committing(writes[0].query, writes[0].run), batchId, writes)

    def committing(self, query: str, run: str) -> SinkCommit:
        """Returns the commit protocol of a query's run."""
        return SinkCommit(self._options, query, run)


class BatchWriter(WorkerPickle, DataSourceArrowWriter):
    """Writes all rows when the write returns, or none if a task fails.

    With a name (`ottla.txn.app.id`) and an increasing version, a write that is run again does not write duplicates.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "mode", "overwrite", "is not supported, because logs are append-only; use the mode append"
            )
        self._options = read_sink_options(options, streaming=False)
        check_columns(schema, self._options.topic)
        self._job = uuid.uuid4().hex

    @in_one_sentence
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes the rows of one task, in a transaction that stays open until `commit` if writing exactly once."""
        options = self._options
        if not options.exactly_once:
            return TaskWrite("", "", 0, 0, write_plain(options, iterator), False, None)
        place = task_place(options.app_id or self._job, options.app_version or 0)
        place = TaskIdentity(place.query, self._job, place.batch, place.task, place.attempt)
        if options.app_id is not None:
            return write_task(options, self.committing(), place, iterator)
        rows, transaction = write_in_transaction(options, place.transactional_id, iterator)
        return TaskWrite(place.query, place.run, place.task, place.attempt, rows, False, transaction)

    @in_one_sentence
    def commit(self, messages: Messages) -> None:
        """Commits the transactions of all tasks. With an application id, a repeated write changes nothing."""
        writes = told(messages)
        if not self._options.exactly_once:
            return
        if self._options.app_id is None:
            asyncio.run(end_all(self._options, self._job, writes, commit=True))
        elif writes:
            asyncio.run(self.committing().commit(self._options.app_version or 0, writes))

    @in_one_sentence
    def abort(self, messages: Messages) -> None:
        """Aborts the transactions of the tasks that have written."""
        writes = told(messages)
        if not self._options.exactly_once or not writes:
            return
        if self._options.app_id is None:
            asyncio.run(end_all(self._options, self._job, writes, commit=False))
        else:
            abort_quietly(self.committing(), self._options.app_version or 0, writes)

    def committing(self) -> SinkCommit:
        """Returns the commit protocol of a named write."""
        return SinkCommit(self._options, self._options.app_id or self._job, self._job)


def write_task(
    options: SinkOptions, committing: SinkCommit, place: TaskIdentity, batches: Iterator[pa.RecordBatch]
) -> TaskWrite:
    """Writes the rows of a task, unless the batch is already decided, whichever rows the task has now."""
    if asyncio.run(committing.enter_task(place.batch)):
        return TaskWrite(place.query, place.run, place.task, place.attempt, 0, True, None)
    rows, transaction = write_in_transaction(options, place.transactional_id, batches)
    return TaskWrite(place.query, place.run, place.task, place.attempt, rows, False, transaction)


def told(messages: Messages) -> list[TaskWrite]:
    """Drops the missing messages of tasks that failed."""
    return [each for each in messages if isinstance(each, TaskWrite)]


def abort_quietly(committing: SinkCommit, batch: int, writes: list[TaskWrite]) -> None:
    """Aborts without raising: Spark is about to report the original failure, and the next run aborts what stays
    open."""
    try:
        asyncio.run(committing.abort(batch, writes))
    except ClientError as failure:
        log.warning("Transactions of batch %d stay open until the query restarts: %s", batch, failure)
