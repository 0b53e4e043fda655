"""Renders the page a slice at a time.

The page of a broker with thousands of partitions is long, and clients must not wait for it.

The slices run on the event loop and not in a thread. Until the page was done, a thread would hold the interpreter lock
for milliseconds at a time, whenever the loop returns from the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ottla.broker.metrics import definitions as declared
from ottla.broker.metrics.cluster_metrics import cluster
from ottla.broker.metrics.page import Page
from ottla.broker.metrics.partition_metrics import topics
from ottla.broker.metrics.process_metrics import process
from ottla.broker.metrics.request_metrics import connections, requests
from ottla.broker.metrics.scrape_target import ScrapeTarget
from ottla.broker.metrics.slices import Slices
from ottla.broker.metrics.storage_metrics import archive_waits, compaction, disk_space, storage
from ottla.broker.metrics.transaction_metrics import transactions

Part = Callable[[ScrapeTarget, Page], Iterator[None]]
"""Adds to the page. Each yield gives other tasks a turn."""
PARTS: tuple[Part, ...] = (
    *(requests, connections, topics, cluster, transactions),
    *(storage, compaction, archive_waits, process),
)


async def scrape(watched: ScrapeTarget) -> list[bytes]:
    """Renders the page and returns it in parts."""
    began_s = time.perf_counter()
    page = Page(watched.broker.node_id)
    await disk_space(watched.broker, page)
    slices = Slices()
    for part in PARTS:
        for _ in part(watched, page):
            await slices.give_way()
        await slices.give_way()
    await watched.group_lags.add_to(page, slices)
    await watched.hanging.add_to(page, slices)
    page.add(declared.SCRAPE_SECONDS, round(time.perf_counter() - began_s, 6))
    encoded: list[bytes] = []
    for text in page.parts():
        encoded.append(text.encode())
        await slices.give_way()
    return encoded
