"""Copies the acknowledged batches of a failed log out of the journal, so that the journal's space can be released.

A `disk` log that failed for good (its segment could not be rewritten, or its directory could not be synced) is never
flushed again. Its acknowledged batches would hold their space in the journal's ring, and a full ring stops all `disk`
logs. They are therefore copied into a file outside the log's directory:

    <data>/rescued/<log's name>/<first offset>-<end offset>.log      batches, as in a segment

The order is that of a flush (safety: journal-space): write and sync the file, rename it, sync the directories, and only
then write a checkpoint that releases the journal's space. A file with its final name is complete. The next start
replays it like the journal, and removes it after a checkpoint covers its contents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ottla.broker.storage.data_layout import DataLayout, log_name
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.journal import JournalEntry
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.segment import LOG_SUFFIX
from ottla.broker.storage.startup.batch_walk import WalkedBatch, intact_batches
from ottla.broker.storage.startup.journal_truncations import JournalTruncations
from ottla.ports import DataFile, FileSystem
from ottla.protocol.model.ids import LogKey
from ottla.reach import branch

_RESCUED = branch("the records of a failed log are rescued from the journal", __name__)

UNFINISHED_SUFFIX = ".new"
GATHERED_BYTES = 1024 * 1024
_NAME = re.compile(r"(\d{20})-(\d{20})" + re.escape(LOG_SUFFIX))


class RescuedFile(NamedTuple):
    """A file of batches that were copied out of the journal."""

    path: str
    first_offset: int
    end_offset: int


def rescued_files(files: FileSystem, directory: str) -> list[RescuedFile]:
    """Returns the complete files of one log, ordered by offset."""
    found = []
    for name in files.list_dir(directory):
        match = _NAME.fullmatch(name)
        if match is not None:
            found.append(RescuedFile(f"{directory}/{name}", int(match[1]), int(match[2])))
    return found


def read_rescued(files: FileSystem, rescued: RescuedFile) -> Iterator[WalkedBatch]:
    """Yields every intact batch of a file. Blocking."""
    file = files.open(rescued.path)
    try:
        yield from intact_batches(file, 0, file.size(), rescued.first_offset)
    finally:
        file.close()


def write_rescued(files: FileSystem, directory: str, batches: Iterable[memoryview], first: int, end: int) -> None:
    """Writes the file durably, including the names of its directory and of the one above, or not at all. Blocking."""
    files.make_dirs(directory)
    path = f"{directory}/{first:020d}-{end:020d}{LOG_SUFFIX}"
    file = files.open(path + UNFINISHED_SUFFIX, create=True)
    try:
        file.truncate(0)
        _write_all(file, batches)
        file.sync()
    finally:
        file.close()
    files.rename(path + UNFINISHED_SUFFIX, path)
    above = directory.rpartition("/")[0]
    for changed in (directory, above, above.rpartition("/")[0]):
        files.sync_dir(changed)


def _write_all(file: DataFile, batches: Iterable[memoryview]) -> None:
    position, gathered, gathered_bytes = 0, list[memoryview](), 0
    for batch in batches:
        gathered.append(batch)
        gathered_bytes += len(batch)
        if gathered_bytes >= GATHERED_BYTES:
            file.write_at(position, gathered)
            position += gathered_bytes
            gathered, gathered_bytes = [], 0
    file.write_at(position, gathered)


def batches_between(entries: Iterable[JournalEntry], key: LogKey, first: int, end: int) -> Iterator[memoryview]:
    """Yields one log's batches from the journal without a gap. Raises OSError if they do not reach from `first` to
    `end`."""
    next_offset = first
    for entry in entries:
        if next_offset >= end:
            break
        if entry.key != key or entry.header is None or entry.header.next_offset <= next_offset:
            continue
        if entry.header.base_offset != next_offset:
            break
        yield entry.batch
        next_offset = entry.header.next_offset
    if next_offset != end:
        raise OSError(
            f"the journal has offsets {first} to {next_offset - 1}, but offsets up to {end - 1} were acknowledged"
        )


def standing_entries(read: Callable[[], Iterator[JournalEntry]]) -> Iterator[JournalEntry]:
    """Yields the journal's entries without the appends that a later truncation removed. Reads the journal twice."""
    cuts = JournalTruncations.of(read())
    return (entry for entry in read() if not cuts.takes_back(entry))


class Rescue:
    """Rescues the failed logs of a broker. Called on the event loop's thread; the copying runs on a disk thread."""

    def __init__(self, shared: LogResources, places: DataLayout) -> None:
        self._shared = shared
        self._places = places
        self._ends: dict[LogKey, int] = {}
        """The end of what is rescued already. Entries in flight when the log failed are copied later, into a second
        file."""
        self._told: set[LogKey] = set()

    def begin(self, log: FileLog, end_offset: int, done: Callable[[BaseException | None], None]) -> None:
        """Copies everything below `end_offset` that no checkpoint covers. Once `done` is called without an error, it is
        durable outside the journal; after an error, the journal has to keep it."""
        point = log.durable.recovery_point
        first = max(self._ends.get(log.key, 0), point.offset if point is not None else 0)
        if first >= end_offset:
            done(None)
            return
        read_journal, files = self._shared.read_journal, self._shared.disk.files
        assert read_journal is not None
        directory = f"{self._places.rescued}/{log_name(log.key)}"

        def copy() -> None:
            batches = batches_between(standing_entries(read_journal), log.key, first, end_offset)
            write_rescued(files, directory, batches, first, end_offset)

        def copied(_: None, error: BaseException | None) -> None:
            if error is None:
                _RESCUED()
                self._ends[log.key] = end_offset
                self._told.discard(log.key)
                self._shared.report(
                    f"{log.directory}: the records that only the journal had were copied to {directory}; the "
                    "next start restores them"
                )
            elif log.key not in self._told:
                self._told.add(log.key)
                self._shared.report(
                    f"{log.directory}: could not copy the records in the journal to {directory}, will retry; "
                    f"they keep their space in the journal: {error}"
                )
            done(error)

        self._shared.disk.sync_queue.call(copy, copied)

    def forget(self, log: FileLog) -> None:
        """Drops the bookkeeping of a deleted log, whose rescued files are deleted with it."""
        self._ends.pop(log.key, None)
        self._told.discard(log.key)
