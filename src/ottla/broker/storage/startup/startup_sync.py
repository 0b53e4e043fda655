"""Syncs the segments, and their directory entries, after a start-up has replayed into them. Blocking.

State files and the indexes of small segments are left to the next flush. Both can be rebuilt from the segments, and
writing thousands of small files would slow down the start of a broker with thousands of logs. For the same reason many
logs are synced with one call where the system supports that.
"""

from __future__ import annotations

import errno
from collections.abc import Collection

from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.segment import Segment
from ottla.ports import SyncAll

LOGS_MIN = 32
"""From this number of logs on, one call syncs them all. Fewer are faster one by one: other files may have much to
write."""
INDEXED_BYTES_MIN = 256 * 1024
"""Segments smaller than this do not get their index written here."""


def settle(logs: Collection[FileLog], sync_all: SyncAll | None) -> None:
    """Makes the replayed part of the logs durable."""
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
    """Writes the index of a segment, unless the disk is full: an index is optional."""
    if segment.written_end < INDEXED_BYTES_MIN:
        return
    try:
        segment.persist_index()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def _sync(log: FileLog) -> None:
    """Syncs one log. The caller syncs the parent directory of all logs."""
    for segment in log.segments:
        if segment.synced_end < segment.written_end:
            segment.file.sync()
    if any(segment.written_end > 0 and not segment.entry_durable for segment in log.segments):
        log.shared.disk.files.sync_dir(log.directory)
