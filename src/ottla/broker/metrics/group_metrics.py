"""Collects metrics of the consumer groups coordinated here: their number and their lag (`ottla.protocol.model.lag`).

The coordinator has the offsets, but the leaders have the records. For a partition with an in-sync replica here, the
local log is read; other partitions are queried like any client would, once per page.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

from ottla.broker.groups.groups import CommittedOffset
from ottla.broker.metrics import definitions as declared
from ottla.broker.metrics.admin_client import asking
from ottla.broker.metrics.slices import Slices
from ottla.broker.partition.partition import Partition
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.protocol.model.lag import batch_timestamp_ms, lag_of, lag_seconds
from ottla.protocol.records.batch import HEADER_BYTES, read_header

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.metrics.page import Page

log = logging.getLogger("ottla.metrics")

COLD_READS_MAX = 200
"""Maximum number of cold reads per page. An idle group costs one read in total, not one per page."""
STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable")
"""Listed so that a state without groups is reported as 0."""

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class GroupLags:
    """Remembers across pages when the first unread records were written."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._times_ms: dict[Place, int | None] = {}
        self._cold_reads_left = 0

    async def add_to(self, page: Page, slices: Slices) -> None:
        """Adds the number of groups by state, and the offset and lag of each partition."""
        groups = self._broker.groups
        for state, count in {**dict.fromkeys(STATES, 0), **groups.group_counts()}.items():
            page.add(declared.GROUPS, count, state)
        known_ms, self._times_ms = self._times_ms, {}
        self._cold_reads_left = COLD_READS_MAX
        elsewhere: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        for committed in list(groups.committed_offsets()):
            topic = self._broker.topics.get(committed.topic)
            partition = topic.partition(committed.partition) if topic is not None else None
            if partition is not None and partition.is_read_here:
                await self._add_lag(page, committed, partition, known_ms)
            elif topic is not None:  # otherwise the topic was deleted, and there is no lag
                elsewhere[committed.group].add((committed.topic, committed.partition))
            page.add(declared.GROUP_OFFSET, committed.offset, committed.group, committed.topic, committed.partition)
            await slices.give_way()
        if elsewhere:
            await self._ask(page, elsewhere)

    async def _add_lag(
        self, page: Page, committed: CommittedOffset, partition: Partition, known_ms: dict[Place, int | None]
    ) -> None:
        lag = lag_of(committed.offset, partition.log.start_offset, partition.last_stable_offset)
        unread_ms: int | None = None
        if lag.first_unread is not None:
            place = (committed.topic, committed.partition, lag.first_unread)
            unread_ms = known_ms[place] if place in known_ms else await self._time_at(partition, lag.first_unread)
            if unread_ms is not None:
                self._times_ms[place] = unread_ms
        seconds = lag_seconds(lag.records, unread_ms, self._broker.clock.now_ms())
        _add(page, committed.group, committed.topic, committed.partition, lag.records, seconds)

    async def _time_at(self, partition: Partition, offset: int) -> int | None:
        """Returns the timestamp of the record at `offset`, or None if it cannot be determined now."""
        found = partition.read(offset, HEADER_BYTES)
        if isinstance(found, ColdRead):
            if self._cold_reads_left == 0:
                found.ended()
                return None
            self._cold_reads_left -= 1
            try:
                found = await partition.read_cold(found)
            except OSError:
                return None
        if not isinstance(found, Slice) or not found.buffers:
            return None
        header = read_header(found.buffers[0])
        return batch_timestamp_ms(header.base_timestamp, header.max_timestamp, header.is_log_append_time)

    async def _ask(self, page: Page, elsewhere: dict[str, set[tuple[str, int]]]) -> None:
        """Adds the lags of partitions on other brokers. Lags that cannot be determined in time are left out."""
        from ottla.client import ClientError  # rarely needed: most brokers have the replicas

        try:
            async with asking(self._broker) as admin:
                found = await admin.group_lags(elsewhere)
        except (ClientError, TimeoutError) as failure:
            log.warning(
                "the lag of %d groups is omitted from the metrics: %s", len(elsewhere), str(failure) or "timed out"
            )
            return
        for group, lags in found.items():
            for each in lags.partitions:
                if each.lag is not None and (each.topic, each.partition) in elsewhere[group]:
                    _add(page, group, each.topic, each.partition, each.lag, each.lag_seconds)


def _add(page: Page, group: str, topic: str, partition: int, records: int, seconds: float | None) -> None:
    labels = page.labels(declared.GROUP_LAG_RECORDS.labels, (group, topic, partition))
    page.add_line(declared.GROUP_LAG_RECORDS, labels, records)
    if seconds is not None:
        page.add_line(declared.GROUP_LAG_SECONDS, labels, seconds)
