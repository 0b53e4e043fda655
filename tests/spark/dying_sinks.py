"""Sinks that fail or kill their driver at a named step, and a naive one. Workers import this module.

Options: `die.at` names the step, `die.batch` the batch, `die.group` the driver's process group. With `die.survive` the
process at that step continues for a while after its driver is dead, as a commit in progress does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.client import PreparedTransaction, PreparedTransactions
from ottla.spark.data_source import OttlaDataSource
from ottla.spark.sink.commit import SinkCommit, TaskWrite
from ottla.spark.sink.decisions import Decision, DecisionLog
from ottla.spark.sink.options import SinkOptions, read_sink_options
from ottla.spark.sink.task import write_plain
from ottla.spark.sink.writers import StreamWriter

Messages = list[WriterCommitMessage | None]


class Death:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._at = options.get("die.at", "")
        self._batch = int(options.get("die.batch", "-1"))
        self._group = int(options.get("die.group", "0"))
        self._survives = "die.survive" in options

    def reached(self, step: str, batch: int) -> None:
        if step != self._at or batch < self._batch or not self._group:
            return
        os.killpg(self._group, signal.SIGKILL)
        if not self._survives:
            os.kill(os.getpid(), signal.SIGKILL)


def batch_of_task() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.getLocalProperty("streaming.sql.batchId") or -1)


class DyingCommit(SinkCommit):
    def __init__(self, options: SinkOptions, query: str, run: str, death: Death) -> None:
        super().__init__(options, query, run)
        self._death = death
        self._batch = -1

    async def record(self, decisions: DecisionLog, decision: Decision) -> None:
        self._death.reached("before record", decision.batch)
        await super().record(decisions, decision)
        self._batch = decision.batch
        self._death.reached("after record", decision.batch)

    async def end_one(self, open_transactions: PreparedTransactions, each: PreparedTransaction) -> None:
        await super().end_one(open_transactions, each)
        self._death.reached("after one", self._batch)

    async def record_done(self, decisions: DecisionLog) -> None:
        self._death.reached("before done", self._batch)
        await super().record_done(decisions)
        self._death.reached("after done", self._batch)


class DyingWriter(StreamWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._death = Death(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        written = super().write(iterator)
        self._death.reached("written", batch_of_task())
        return written

    def committing(self, query: str, run: str) -> SinkCommit:
        return DyingCommit(self._options, query, run, self._death)


class DyingSource(OttlaDataSource):
    @classmethod
    def name(cls) -> str:
        return "ottla_dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        return DyingWriter(self.options, schema)


class NaiveWriter(DataSourceStreamArrowWriter):
    """Writes directly, without exactly-once handling. The harness must detect its duplicates."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = read_sink_options({**options, "ottla.delivery": "at-least-once"}, streaming=True)
        self._death = Death(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        rows = write_plain(self._options, iterator)
        self._death.reached("written", batch_of_task())
        return TaskWrite("", "", 0, 0, rows, False, None)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        self._death.reached("before record", batchId)


class NaiveSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "naive_dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> NaiveWriter:  # noqa: N802 - Spark's name
        return NaiveWriter(dict(self.options))


class FailingOnceWriter(StreamWriter):
    """The first attempt of each task fails after its rows were written."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        written = super().write(iterator)
        context: Any = TaskContext.get()
        if context.attemptNumber() == 0:
            raise RuntimeError("this attempt fails")
        return written


class FailingOnceSource(OttlaDataSource):
    @classmethod
    def name(cls) -> str:
        return "ottla_failing_once"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        return FailingOnceWriter(self.options, schema)
