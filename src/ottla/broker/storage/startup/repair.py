"""Rewrites a segment from the journal into a new file, after a write or sync of it has failed (safety: failed-sync).

After a failed sync the kernel may mark pages clean that never reached the disk, so neither the file nor a second sync
of it can be trusted. The part that was synced before is copied. Everything after it is in the journal, because journal
space is not released before the segment is durable; appends that were truncated since are skipped. Appends continue
meanwhile; only the segment writes are suspended.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.segment import REWRITE_SUFFIX, Segment
from ottla.broker.storage.segment_writer import RETRY_FULL_DISK_MS
from ottla.broker.storage.startup.batch_walk import BatchWalk
from ottla.broker.storage.startup.rescue import standing_entries
from ottla.ports import DataFile
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.storage.flusher import Flusher

_BEGUN = branch("a segment fails and is rewritten from the journal", __name__)
_REWRITTEN = branch("a rewritten segment takes the place of the failed one", __name__)
_FULL = branch("a rewrite of a segment waits for space on a full disk", __name__)

COPY_BYTES = 1024 * 1024


class Repair:
    """Repairs the segments of one log; reused for each failure."""

    def __init__(self, log: FileLog, flusher: Flusher) -> None:
        self._log = log
        self._flusher = flusher
        self._running = False

    def begin(self, error: OSError) -> None:
        """Suspends segment writes and rewrites the suspect segments, unless a repair is already running."""
        if self._running:
            return
        self._running = True
        _BEGUN()
        log = self._log
        log.shared.report(f"{log.directory}: a segment failed ({error}); rewriting it from the journal")
        log.writer.freeze()
        self._rewrite()

    def _rewrite(self) -> None:
        """Rewrites up to the current end of the journal. Anything above it was never written, and is still in
        memory."""
        log = self._log
        target = log.acknowledged_end
        sizes = {s: log.writer.bytes_below(target, s) for s in log.segments if s.synced_end < s.appended_end}
        suspect = [segment for segment, size in sizes.items() if size > 0]

        allocated = {segment: max(segment.allocated_end, sizes[segment]) for segment in suspect}

        def rewrite() -> dict[Segment, DataFile]:
            return {segment: _write_anew(log, segment, sizes[segment], allocated[segment]) for segment in suspect}

        def done(files: dict[Segment, DataFile] | None, error: BaseException | None) -> None:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                _FULL()
                log.shared.clock.call_later(RETRY_FULL_DISK_MS, self._rewrite)
                return
            if error is None and any(segment.appended_end > allocated[segment] for segment in suspect):
                self._rewrite()  # appends outgrew the space, and journaled data needs its place (safety: full-disk)
                return
            self._running = False
            if error is not None or files is None:
                log.fail(error if isinstance(error, OSError) else OSError(str(error)))
                return
            _REWRITTEN()
            for segment, file in files.items():
                segment.replace_file(file, sizes[segment], allocated[segment])
            log.writer.thaw(target)
            self._flusher.run(logs=[log])

        log.shared.disk.sync_queue.call(rewrite, done)


def _write_anew(log: FileLog, segment: Segment, size: int, allocated_end: int) -> DataFile:
    """Writes a new file for a segment, on a disk thread. It gets all the space of the old file, which appends rely
    on."""
    files = log.shared.disk.files
    path = segment.path + REWRITE_SUFFIX
    file = files.open(path, create=True)
    file.truncate(0)
    if allocated_end:
        file.allocate(0, allocated_end)
    position = _copy(segment.file, file, segment.synced_end)
    next_offset = segment.base_offset
    for found in BatchWalk(file, 0, position, verify=True, next_offset=next_offset):
        next_offset = found.header.next_offset
    assert log.shared.read_journal is not None
    for entry in standing_entries(log.shared.read_journal):
        header = entry.header
        if entry.key != log.key or header is None or header.base_offset != next_offset or position >= size:
            continue
        file.write_at(position, [entry.batch])
        position += len(entry.batch)
        next_offset = header.next_offset
    if position != size:
        raise OSError(f"{segment.path}: the journal does not have all of it ({position} of {size} bytes)")
    file.sync()
    files.rename(path, segment.path)
    files.sync_dir(log.directory)
    return file


def _copy(source: DataFile, target: DataFile, size: int) -> int:
    position = 0
    while position < size:
        data = source.read_at(position, min(COPY_BYTES, size - position))
        if not data:
            raise OSError(f"{source.path} ends at {position}, before {size}")
        target.write_at(position, [data])
        position += len(data)
    return position
