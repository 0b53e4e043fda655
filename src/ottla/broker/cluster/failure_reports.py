"""Reports failed logs to the controller, so that other brokers lead the partitions that this one can no longer write
(safety: failed-sync)."""

from __future__ import annotations

import asyncio

from ottla.broker.cluster.commits import commit
from ottla.broker.cluster.membership import Membership
from ottla.broker.context import BrokerContext
from ottla.coordination.port import OutcomeUnknownError, UnavailableError
from ottla.machines.controller.broker_requests import report_failures
from ottla.machines.controller.state import FailedLogs, PartitionKey

RETRY_MS = 500.0


class FailureReports:
    """Stores the list of failed logs."""

    def __init__(self, context: BrokerContext, membership: Membership) -> None:
        self._context = context
        self._membership = membership
        self._is_due = False
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self) -> None:
        """Schedules a report. All failures in one iteration of the event loop share one report."""
        if not self._is_due:
            self._is_due = True
            self._context.clock.call_soon(self._begin)

    def failed_logs(self) -> frozenset[PartitionKey]:
        """Returns the partitions whose logs have failed."""
        return frozenset(
            PartitionKey(partition.topic.id, partition.index)
            for partition in self._context.partitions()
            if partition.log.failed is not None
        )

    def stop(self) -> None:
        """Cancels the reports in progress."""
        for task in self._tasks:
            task.cancel()

    def _begin(self) -> None:
        task = asyncio.ensure_future(self._store())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _store(self) -> None:
        self._is_due = False
        member, lease = self._membership.member, self._membership.lease
        if member is None or lease is None:
            return
        report = FailedLogs(member.broker_epoch, partitions=self.failed_logs())
        write = report_failures(self._membership.image, member.broker_id, report, lease.id)
        try:
            is_stored = await commit(self._membership.store, write) is not None
        except (UnavailableError, OutcomeUnknownError):
            is_stored = False
        if not is_stored and not self._is_due:
            self._is_due = True
            self._context.clock.call_later(RETRY_MS, self._begin)
