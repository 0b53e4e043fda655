"""All logs under one data directory: recovers them at start-up, creates and deletes them.

`broker/storage/data_layout.py` has the directory layout.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TypeVar

from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.data_layout import DELETED_SUFFIX, DataLayout, log_name
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.flusher import Flusher
from ottla.broker.storage.journal import Journal, JournalEntry, JournalLimits, Mutation, recover
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.memory_log import MemoryLog
from ottla.broker.storage.reserve import SpaceReserve
from ottla.broker.storage.startup.repair import Repair
from ottla.broker.storage.startup.replay import ReplaySummary
from ottla.broker.storage.startup.rescue import Rescue
from ottla.broker.storage.truncation import Truncation
from ottla.broker.topics.log_recovery import LogRecovery
from ottla.ports import Completion
from ottla.protocol.model.ids import LogKey, TopicId
from ottla.protocol.model.topic_config import TopicConfig
from ottla.reach import branch

_DELETED = branch("a log is deleted", __name__)

T = TypeVar("T")


class LogStore:
    """The logs of one broker, with the journal and the flusher they share. It is also the `LogTruncator` of their
    partitions."""

    def __init__(self, shared: LogResources, data_dir: str, journal_id: bytes, limits: JournalLimits) -> None:
        self.shared = shared
        self._files = shared.disk.files
        self._places = DataLayout(data_dir)
        self._journal_id = journal_id
        self._limits = limits
        self._reserve = shared.reserve = SpaceReserve(self._files, data_dir)
        self.logs: dict[LogKey, FileLog] = {}
        self.flusher: Flusher | None = None
        self.replayed = ReplaySummary()
        self.may_lack_entries = False
        """Any `disk` log may end too early: the journal lost entries, and it is unknown which logs they belong to."""

    def directory_of(self, key: LogKey) -> str:
        """Returns the directory of a log. It does not exist before the first record."""
        return self._places.directory_of(key)

    # -- start-up, blocking -----------------------------------------------------------------------------------

    def hold_reserve(self) -> None:
        """Allocates the space reserve. This comes before any other write, so that a killed broker can start on a full
        disk."""
        self._reserve.hold()

    def with_reserve(self, job: Callable[[], T]) -> T:
        """Runs a job that a full disk must not prevent. While it fails for lack of space, a part of the reserve is
        released and the job runs again. Blocking."""
        return self._reserve.use_for(job)

    def recover(self, wanted: Iterable[tuple[LogKey, TopicConfig]], deleted: Collection[TopicId] = frozenset()) -> None:
        """Recovers the logs and removes all files of deleted topics. Afterwards the new checkpoint is durable, so the
        journal's old blocks may be overwritten."""
        self.hold_reserve()
        known = list(wanted)
        start_up = self.with_reserve(lambda: self._start_up(known, deleted))
        self.logs, self.replayed = start_up.logs, start_up.replayed
        self.may_lack_entries = start_up.may_lack_entries
        rescue = Rescue(self.shared, self._places)
        self.flusher = Flusher(self.shared, self._places.checkpoint, start_up.points, start_up.last_sequence, rescue)
        self.shared.journal = self.with_reserve(lambda: self._open_journal(start_up.last_sequence))
        self.shared.read_journal = self._read_journal
        for log in self.logs.values():
            self._adopt(log)
        if not self._reserve.is_held:
            self.shared.report(f"the disk of {self._places.data_dir} is full: writes are refused until there is space")

    def _start_up(self, wanted: Iterable[tuple[LogKey, TopicConfig]], deleted: Collection[TopicId]) -> LogRecovery:
        start_up = LogRecovery(self.shared, self._places, self._journal_id, deleted)
        try:
            start_up.run(wanted)
        except OSError as error:
            start_up.abandon()
            if error.errno == errno.ENOSPC:
                sentence = (
                    "there is no space left to take back what the journal holds; free some space, nothing is lost"
                )
                raise OSError(error.errno, sentence, error.filename or self._places.data_dir) from error
            raise
        return start_up

    def _open_journal(self, released: int) -> Journal:
        assert self.flusher is not None
        return Journal.open(
            self.shared.disk,
            self.shared.clock,
            self._places.journal,
            self._journal_id,
            released=released,
            limits=self._limits,
            on_pressure=self.flusher.run,
        )

    def _read_journal(self) -> Iterator[JournalEntry]:
        assert self.flusher is not None
        released = self.flusher.released_sequence
        return recover(self._files, self._places.journal, self._journal_id, released).entries()

    def _adopt(self, log: FileLog) -> FileLog:
        """Lets a journaled log repair itself after a segment failure."""
        if log.is_journaled:
            assert self.flusher is not None
            log.writer.repair = Repair(log, self.flusher).begin
        return log

    def forget_lost_entries(self) -> None:
        """Removes the durable note of lost journal entries, after the replicas of these logs have been notified.
        Blocking."""
        if self.may_lack_entries:
            self._files.remove(self._places.lost_entries)
            self._files.sync_dir(self._places.data_dir)
            self.may_lack_entries = False

    # -- while serving ----------------------------------------------------------------------------------------

    def create(self, key: LogKey, config: TopicConfig) -> FileLog:
        """Creates an empty log. Its directory is created with the first record, so this does no I/O."""
        log = FileLog.empty(self.shared, key, self.directory_of(key), config)
        self.logs[key] = log
        return self._adopt(log)

    def delete(self, log: FileLog, gone: Callable[[], None] = lambda: None) -> None:
        """Removes a log at once; its files are deleted in the background. `gone` is called when a restart can no longer
        find traces of the log: no files, and no journal entries without the entry of its deletion."""
        _DELETED()
        del self.logs[log.key]
        log.mark_deleted()
        self.shared.unsynced.discard(log)
        if self.flusher is not None:
            self.flusher.forget(log)
        self.shared.tail.forget(log.writer)
        for segment in log.segments:
            segment.removed = True

        def removed(_: None, error: BaseException | None, *, is_journaled: bool) -> None:
            for segment in log.segments:
                segment.close()  # an open file would keep its space allocated
            if error is not None:
                self.shared.report(f"{log.directory} could not be removed: {error}")
            elif is_journaled:
                gone()

        def journaled(error: OSError | None) -> None:
            done = partial(removed, is_journaled=error is None)
            self.shared.disk.sync_queue.call(lambda: self._remove_files(log), done)

        journal = self.shared.journal
        if not log.is_journaled or journal is None:
            journaled(None)
        elif journal.failed is not None:
            journaled(journal.failed)
        else:
            journal.append_mutation(log, Mutation.DELETE, 0, journaled)

    def truncate(self, log: AnyLog, offset: int, done: Completion) -> None:
        """Truncates a log to an offset, or to the start of the batch that holds it."""
        if isinstance(log, MemoryLog):
            log.truncate_to(offset)
            done(None)
        else:
            assert self.flusher is not None
            Truncation(log, self.flusher, offset, done).begin()

    def reset(self, log: AnyLog, offset: int, done: Completion) -> None:
        """Replaces a log by an empty one that starts at the offset."""
        if isinstance(log, MemoryLog):
            log.reset_to(offset)
            done(None)
        else:
            assert self.flusher is not None
            Truncation(log, self.flusher, offset, done, resets=True).begin()

    def _remove_files(self, log: FileLog) -> None:
        """Blocking; runs on a disk thread."""
        rescued = f"{self._places.rescued}/{log_name(log.key)}"
        if self._files.exists(rescued):
            self._files.remove_tree(rescued)
            self._files.sync_dir(self._places.rescued)
        gone = log.directory + DELETED_SUFFIX
        if self._files.exists(log.directory):
            self._files.rename(log.directory, gone)
            # Without the sync, a power failure could bring the directory back, and no topic would own it.
            self._files.sync_dir(self._places.logs)
            self._files.remove_tree(gone)

    def close(self) -> None:
        """Closes the journal and the files of all logs, without flushing them."""
        if self.shared.journal is not None:
            self.shared.journal.close()
        for log in self.logs.values():
            log.close()
