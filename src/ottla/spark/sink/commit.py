"""Commits a batch exactly once. Runs on the driver, and at the beginning of each task.

A batch is decided by one record (`sink_decisions`) that names all of its transactions. Only then are they committed,
one after the other. Later runs finish what was decided and never decide it again. docs/guides/spark.md gives the
argument, step by step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from ottla.client import Admin, PreparedTransaction, PreparedTransactions
from ottla.client.errors import BrokerRefusedError, ClientError
from ottla.spark.sink.decisions import Decision, DecisionLog, ids_of, ids_of_run
from ottla.spark.sink.options import SinkOptions

log = logging.getLogger("ottla.spark")

_COMMITTED = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


class SinkError(Exception):
    """A batch could not be written completely. The message says what was written, and what to do."""


@dataclass
class TaskWrite(WriterCommitMessage):
    """The message of a task to the driver."""

    query: str
    run: str
    task: int
    attempt: int
    rows: int
    skipped: bool
    """The batch was already decided: its rows are written, or will be."""
    transaction: PreparedTransaction | None


class SinkCommit:
    """The commit protocol of one query, or of one named batch write."""

    def __init__(self, options: SinkOptions, query: str, run: str) -> None:
        self._options = options
        self._query = query
        self._run = run

    def log(self) -> DecisionLog:
        """Returns the decision log of the query."""
        return DecisionLog(self._options, self._query)

    @property
    def _ids_of_run(self) -> str:
        """The prefix of the transactional ids of this run's tasks."""
        return ids_of_run(self._query, self._run)

    async def enter_task(self, batch: int) -> bool:
        """Returns whether the batch is already decided.

        Before that, finishes an earlier decided batch and aborts transactions that earlier runs left open.
        """
        async with self.log() as decisions:
            last = decisions.last
            if last is not None and not last.done and last.batch < batch:
                await self._finish(decisions, last, done=False)  # other tasks may be doing the same
            if last is None or last.run != self._run:  # tasks of this run may be in progress, but not those of others
                kept = () if last is None or last.done else last.transactions
                await abort_leftovers(self._options, ids_of(self._query), kept, spare=self._ids_of_run)
            return last is not None and last.batch >= batch

    async def commit(self, batch: int, writes: Sequence[TaskWrite]) -> None:
        """Decides and commits the batch. Its rows are committed when this returns."""
        written = [each.transaction for each in writes if each.transaction is not None]
        async with self.log() as decisions:
            last = decisions.last
            if last is not None and last.batch > batch:
                raise SinkError(
                    f"batch {batch} is older than the committed batch {last.batch}: another run of query "
                    f"{self._query} has advanced. Stop this one"
                )
            if last is None or last.batch < batch:
                if any(each.skipped for each in writes):
                    raise SinkError(
                        f"batch {batch} of query {self._query} was rolled back concurrently; restart the query"
                    )
                await self._require_open(written)
                last = Decision(batch, self._run, tuple(written))
                await self.record(decisions, last)
            else:
                await self._abort(each for each in written if each not in last.transactions)
            if not last.done:
                await self._finish(decisions, last)
            # All tasks of this run have ended. Transactions left open by dead attempts cannot be recognized by the
            # attempt numbers of the successful ones, because a retried stage counts from 0.
            await abort_leftovers_quietly(self._options, self._ids_of_run, last.transactions)

    async def abort(self, batch: int, writes: Sequence[TaskWrite]) -> None:
        """Aborts the transactions of a failed batch or commit. A decided batch stays."""
        async with self.log() as decisions:
            if decisions.last is not None and decisions.last.batch >= batch:
                return
            await self._abort(each.transaction for each in writes if each.transaction is not None)

    # Separate methods, so that a test can crash between them.

    async def record(self, decisions: DecisionLog, decision: Decision) -> None:
        """Records the decision, unless the batch wrote nothing."""
        if decision.transactions:
            await decisions.record(decision)

    async def end_one(self, open_transactions: PreparedTransactions, each: PreparedTransaction) -> None:
        """Commits one prepared transaction; committing it again does nothing."""
        await open_transactions.end(each, commit=True)

    async def record_done(self, decisions: DecisionLog) -> None:
        """Records that all transactions of the last decision are committed."""
        await decisions.record_done()

    # Completion.

    async def _finish(self, decisions: DecisionLog, decision: Decision, *, done: bool = True) -> None:
        """Commits all transactions of a decision, and records it as done if `done` is true."""
        refused: list[PreparedTransaction] = []
        async with PreparedTransactions(self._options.servers) as open_transactions:
            for each in decision.transactions:
                try:
                    await self.end_one(open_transactions, each)
                except BrokerRefusedError as refusal:
                    log.warning("Could not commit transaction %s: %s", each.transactional_id, refusal)
                    refused.append(each)
        if refused:
            await self._settle_lost(decisions, decision, refused)
        if decision.transactions and done:
            await self.record_done(decisions)

    async def _settle_lost(
        self, decisions: DecisionLog, decision: Decision, refused: Sequence[PreparedTransaction]
    ) -> None:
        """Handles transactions that are no longer open, because the driver was away for longer than the transaction
        timeout."""
        states = await self._states(refused)
        lost = [each for each in refused if states[each] not in _COMMITTED]
        if not lost:
            return
        what = f"batch {decision.batch} of query {self._query}"
        names = ", ".join(f"{each.transactional_id} ({states[each]})" for each in lost)
        if len(lost) == len(decision.transactions) and all(states[each] in _ABORTED for each in lost):
            await decisions.record(Decision(decision.batch - 1, decision.run, done=True))
            raise SinkError(f"nothing of {what} was written: {names}. Restart the query to write it again")
        if self._options.accept_lost:
            log.warning("%s continues without the lost transactions: %s", what, names)
            return
        raise SinkError(
            f"{what} is only partly written: the broker has aborted {names}, because the query was stopped for "
            "longer than kafka.transaction.timeout.ms, and the others are committed. Set "
            "ottla.lost.transactions=accept to continue without them"
        )

    async def _require_open(self, transactions: Sequence[PreparedTransaction]) -> None:
        """Checks that all transactions are still open, so that nothing is decided that cannot be committed.

        If one is not, the batch fails and is retried.
        """
        if not transactions:
            return
        async with Admin(self._options.servers) as admin:
            found = await admin.describe_transactions(each.transactional_id for each in transactions)
        for each in transactions:
            now = found.get(each.transactional_id)
            if now is None or now.state != "Ongoing" or (now.producer_id, now.producer_epoch) != each[1:3]:
                state = "gone" if now is None else f"{now.state}, epoch {now.producer_epoch}"
                raise SinkError(
                    f"transaction {each.transactional_id} of a task is no longer open ({state}): it took "
                    "longer than kafka.transaction.timeout.ms, or another attempt of the task has started. "
                    "Nothing was written; the batch will be retried"
                )

    async def _states(self, transactions: Sequence[PreparedTransaction]) -> dict[PreparedTransaction, str]:
        async with Admin(self._options.servers) as admin:
            found = await admin.describe_transactions(each.transactional_id for each in transactions)
        return {
            each: "unknown"
            if (now := found.get(each.transactional_id)) is None or now.producer_id != each.producer_id
            else now.state
            for each in transactions
        }

    async def _abort(self, transactions: Iterable[PreparedTransaction]) -> None:
        async with PreparedTransactions(self._options.servers) as open_transactions:
            for each in transactions:
                try:
                    await open_transactions.end(each, commit=False)
                except BrokerRefusedError as refusal:  # it is no longer open, which is the goal
                    log.debug("%s was not aborted: %s", each.transactional_id, refusal)


async def abort_leftovers(
    options: SinkOptions, ids: str, keep: Iterable[PreparedTransaction] = (), *, spare: str | None = None
) -> None:
    """Aborts transactions of dead tasks, which would block readers of committed records.

    These are the ones whose ids begin with `ids` but not with `spare`.
    """
    kept = {each.transactional_id for each in keep}
    async with Admin(options.servers) as admin:
        for each in await admin.list_transactions(states=["Ongoing"]):
            name = each.transactional_id
            if not name.startswith(ids) or name in kept or name.endswith(":decisions"):
                continue
            if spare is None or not name.startswith(spare):
                await admin.fence_producer(name)


async def abort_leftovers_quietly(options: SinkOptions, ids: str, keep: Iterable[PreparedTransaction] = ()) -> None:
    """Aborts without raising: the batch is committed, so an unavailable broker must not make it fail."""
    try:
        await abort_leftovers(options, ids, keep)
    except ClientError as failure:
        log.warning(
            "Could not abort transactions of dead tasks; the next batch or their timeout aborts them: %s", failure
        )


async def end_all(options: SinkOptions, query: str, writes: Sequence[TaskWrite], *, commit: bool) -> None:
    """Ends all transactions of an unnamed batch write. Nobody can finish it later, so no decision is recorded."""
    done = 0
    transactions = [each.transaction for each in writes if each.transaction is not None]
    async with PreparedTransactions(options.servers) as open_transactions:
        for each in transactions:
            try:
                await open_transactions.end(each, commit=commit)
            except ClientError as failure:
                if commit:
                    raise SinkError(
                        f"{done} of {len(transactions)} transactions of the write are committed, but {each} is "
                        f"not: {failure}. Set ottla.txn.app.id and ottla.txn.version so that a retry can "
                        "finish a write"
                    ) from failure
            done += 1
    await abort_leftovers_quietly(options, ids_of(query))
