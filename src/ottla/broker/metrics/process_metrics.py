"""Collects metrics of the process: its use of the machine and Python's garbage collector."""

from __future__ import annotations

import gc
import os
import platform
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import ottla
from ottla.broker.metrics import definitions as declared
from ottla.broker.metrics.page import Page
from ottla.broker.metrics.scrape_target import ScrapeTarget

STATM = Path("/proc/self/statm")
DESCRIPTORS = "/proc/self/fd"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process(watched: ScrapeTarget, page: Page) -> Iterator[None]:
    """Adds the metrics of the process and the garbage collector."""
    page.add(declared.BUILD_INFO, 1, ottla.__version__, platform.python_version(), watched.broker.metadata.cluster_id)
    page.add(declared.START_TIME, watched.started_ms / 1000)
    page.add(declared.CPU_SECONDS, time.process_time())
    _memory_and_files(page)
    yield
    for generation, stats in enumerate(gc.get_stats()):
        page.add(declared.GC_COLLECTIONS, stats["collections"], generation)
        page.add(declared.GC_COLLECTED, stats["collected"], generation)
    page.add_histogram(declared.LOOP_DELAY_SECONDS, watched.loop_delay.late_s)


def _memory_and_files(page: Page) -> None:
    try:
        resident_pages = int(STATM.read_text().split()[1])
        open_files = len(os.listdir(DESCRIPTORS))
    except OSError:  # not Linux
        return
    page.add(declared.RESIDENT_BYTES, resident_pages * _PAGE_BYTES)
    page.add(declared.OPEN_FILES, open_files)
    page.add(declared.OPEN_FILES_LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
