"""Collects metrics of the journal, the disk and the memory that records use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ottla.broker.blocking_jobs import run_blocking
from ottla.broker.broker import Broker
from ottla.broker.metrics import definitions as declared
from ottla.broker.metrics.page import Page
from ottla.broker.metrics.scrape_target import ScrapeTarget
from ottla.broker.storage.compaction.compaction import CompactionResult
from ottla.broker.storage.journal import Journal
from ottla.protocol.model.histogram import Histogram

DISK_PATIENCE_S = 1.0
"""Timeout of the disk query, so that a hanging disk does not block the page."""


def storage(watched: ScrapeTarget, page: Page) -> Iterator[None]:
    """Adds the metrics of the journal, the memory that records use and the disk queues."""
    shared = watched.broker.context.shared
    if shared.journal is not None:
        _journal(shared.journal, page)
    yield
    reserve = shared.reserve
    page.add(declared.DISK_FULL, int(reserve is not None and not reserve.is_held))
    page.add(declared.MEMORY_CLASS_BYTES, shared.memory.size_bytes)
    page.add(declared.MEMORY_CLASS_LIMIT_BYTES, shared.memory.size_bytes_max)
    page.add(declared.TAIL_CACHE_BYTES, shared.tail.size_bytes)
    disk = shared.disk
    queues = {
        "journal": disk.journal_queue,
        "segments": disk.segment_queue,
        "syncs": disk.sync_queue,
        "reads": disk.read_queue,
        "catalog": disk.catalog_queue,
    }
    for name, queue in queues.items():
        page.add(declared.DISK_QUEUE, queue.pending(), name)


def compaction(watched: ScrapeTarget, page: Page) -> Iterator[None]:
    """Adds the metrics of compaction; zeros without a compactor."""
    compactor = watched.broker.housekeeping.compactor
    for ended in CompactionResult:
        page.add(declared.COMPACTIONS, 0 if compactor is None else compactor.outcomes[ended], ended.name.lower())
    page.add(declared.COMPACTION_REMOVED_RECORDS, 0 if compactor is None else compactor.removed_records)
    page.add(declared.COMPACTION_RECLAIMED_BYTES, 0 if compactor is None else max(compactor.reclaimed_bytes, 0))
    yield


def archive_waits(watched: ScrapeTarget, page: Page) -> Iterator[None]:
    """Adds the bytes that topics with an archive keep for it."""
    waits = watched.broker.housekeeping.archive_waits
    for topic in list(watched.broker.topics):
        if topic.config.archive_group:
            for partition in topic.partitions:
                if partition.is_led_here:
                    waiting_bytes = waits.waiting_bytes(partition)
                    page.add(declared.ARCHIVE_WAITING_BYTES, waiting_bytes, topic.name, partition.index)
            page.add(declared.DELETED_UNARCHIVED_RECORDS, waits.deleted_unarchived[topic.name], topic.name)
            yield


def _journal(journal: Journal, page: Page) -> None:
    stats = journal.stats
    page.add(declared.JOURNAL_SYNCS, stats.syncs)
    page.add_histogram(declared.JOURNAL_SYNC_SECONDS, stats.sync_s)
    page.add_histogram(declared.JOURNAL_GROUP_ENTRIES, group_sizes(stats.groups_by_entries, stats.entries))
    page.add(declared.JOURNAL_WRITTEN_BYTES, stats.bytes_written)
    page.add(declared.JOURNAL_BYTES, journal.total_bytes)
    page.add(declared.JOURNAL_USED_BYTES, journal.used_bytes)
    page.add(declared.JOURNAL_FAILED, int(journal.failed is not None))


def group_sizes(groups_by_entries: list[int], entries: int) -> Histogram:
    """Converts the counts to a histogram. Element i counts groups of [2^(i-1), 2^i) entries: at most 2^i - 1."""
    found = Histogram([2.0**place - 1 for place in range(1, GROUP_PLACES)])
    found.counts = [*groups_by_entries[1:GROUP_PLACES], sum(groups_by_entries[GROUP_PLACES:])]
    found.total = float(entries)
    return found


GROUP_PLACES = 14
"""Groups of more than 8,191 entries fall into the last bucket."""


async def disk_space(broker: Broker, page: Page) -> None:
    """Adds the size and free space of the disk, or nothing if the disk does not respond."""

    def look() -> tuple[int, int]:
        return broker.context.log_dir_free_bytes(), broker.context.log_dir_total_bytes()

    try:
        async with asyncio.timeout(DISK_PATIENCE_S):
            free_bytes, total_bytes = await run_blocking(broker.context.shared.disk.read_queue, look)
    except (OSError, TimeoutError):
        return
    page.add(declared.DISK_FREE_BYTES, free_bytes)
    page.add(declared.DISK_BYTES, total_bytes)
