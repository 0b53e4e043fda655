"""Makes what a start-up replayed into the logs durable: their segments, and the names of those. Blocking.

States are left to the next flush, and so are indexes of small segments: both are learned again from the segments, and
thousands of small files would make the start of thousands of logs long. For the same reason many logs are synced at
once, if the system can do that.
"""

from __future__ import annotations

import errno
from collections.abc import Collection

from ottla.log.file_log import FileLog
from ottla.log.segment import Segment
from ottla.ports import SyncAll

LOGS_MIN = 32
"""From so many on they are synced at once. Fewer are quicker one by one: others may have much to write."""
INDEXED_BYTES_MIN = 256 * 1024


def settle(logs: Collection[FileLog], sync_all: SyncAll | None) -> None:
    for log in logs:
        for segment in log.segments:
            _persist_index(segment)
    if sync_all is not None and len(logs) >= LOGS_MIN:
        sync_all.finish()
    else:
        for log in logs:
            _sync(log)
    for log in logs:
        for segment in log.segments:
            segment.synced_end = segment.written_end
            segment.entry_durable = segment.entry_durable or segment.written_end > 0


def _persist_index(segment: Segment) -> None:
    """It can be done without: on a full disk it is."""
    if segment.written_end < INDEXED_BYTES_MIN:
        return
    try:
        segment.persist_index()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def _sync(log: FileLog) -> None:
    """The caller syncs the directory of all logs."""
    for segment in log.segments:
        if segment.synced_end < segment.written_end:
            segment.file.sync()
    if any(segment.written_end > 0 and not segment.entry_durable for segment in log.segments):
        log.shared.disk.files.sync_dir(log.directory)
