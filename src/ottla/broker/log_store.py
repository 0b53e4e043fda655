"""All logs under one data directory: where they are, how they come back after a restart.

<data>/FORMAT            format version and ids
<data>/checkpoint        up to where each log is synced, and from where the journal is replayed
<data>/journal/          the journal's ring
<data>/logs/<topic id>-<partition>/   segments, indexes, state
<data>/recycled/         files of expired segments, waiting to become new ones
<data>/reserve           space kept back for a full disk
<data>/set-aside/        directories that no topic claims: kept, never deleted by the broker
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ottla.log.checkpoint import (
    CHECKPOINT_FILE,
    Checkpoint,
    CheckpointDamagedError,
    RecoveryPoint,
    decode_checkpoint,
    encode_checkpoint,
)
from ottla.log.file_log import FileLog
from ottla.log.flush import Flush
from ottla.log.flusher import Flusher
from ottla.log.journal import Journal, JournalEntry, JournalLimits, Mutation, recover
from ottla.log.recovery import open_file_log
from ottla.log.recycling import RecycledFiles
from ottla.log.repair import Repair
from ottla.log.reserve import SpaceReserve
from ottla.log.shared import SharedByLogs
from ottla.model.ids import LogKey
from ottla.model.topic_config import TopicConfig

DELETED_SUFFIX = ".deleted"


@dataclass(slots=True)
class Replayed:
    """What a start-up did, for the log and the metrics."""

    batches: int = 0
    bytes: int = 0
    logs: set[LogKey] = field(default_factory=set)
    unknown: int = 0


class LogStore:
    def __init__(self, shared: SharedByLogs, data_dir: str, journal_id: bytes, limits: JournalLimits) -> None:
        self.shared = shared
        self._files = shared.disk.files
        self._data_dir = data_dir
        self._logs_dir = f"{data_dir}/logs"
        self._journal_dir = f"{data_dir}/journal"
        self._journal_id = journal_id
        self._limits = limits
        self._checkpoint = Checkpoint()
        self._trust_checkpoint = True
        self._has_checkpoint = False
        self.logs: dict[LogKey, FileLog] = {}
        self.flusher: Flusher | None = None
        self.replayed = Replayed()

    def directory_of(self, key: LogKey) -> str:
        suffix = f"-{key.generation}" if key.generation else ""
        return f"{self._logs_dir}/{key.topic_id.hex}-{key.partition}{suffix}"

    # -- start-up, blocking -----------------------------------------------------------------------------------

    def recover(self, wanted: Iterable[tuple[LogKey, TopicConfig]]) -> None:
        """Opens every log of the catalog and replays what the segments miss. Running it again after a crash in the
        middle gives the same: the journal is touched only after the new checkpoint is durable."""
        self._files.make_dirs(self._logs_dir)
        self._files.make_dirs(self._journal_dir)
        self.shared.recycled = RecycledFiles(self._files, f"{self._data_dir}/recycled")
        self.shared.recycled.clear()
        reserve = SpaceReserve(self._files, self._data_dir)
        if not reserve.hold():
            self.shared.report(f"the disk of {self._data_dir} is full: writes are refused until there is space")
        self.shared.reserve = reserve
        self._load_checkpoint()
        for key, config in wanted:
            self.logs[key] = self._open(key, config)
        self._set_unknown_aside()
        recovered = recover(self._files, self._journal_dir, self._journal_id, self._checkpoint.released_sequence)
        if self._has_checkpoint and not self._files.list_dir(self._journal_dir):
            self.shared.report(
                f"{self._journal_dir} is empty, acknowledged records may be missing: what was in it is lost"
            )
        for entry in recovered.entries():
            self._replay(entry)
        for damage in recovered.damage:
            self.shared.report(f"the journal is damaged, acknowledged records may be missing: {damage}")
        points = self._sync_replayed()
        self._write_checkpoint(recovered.last_sequence, points)
        self.flusher = Flusher(self.shared, f"{self._data_dir}/{CHECKPOINT_FILE}", points, recovered.last_sequence)
        self.shared.journal = Journal.open(
            self.shared.disk,
            self.shared.clock,
            self._journal_dir,
            self._journal_id,
            released=recovered.last_sequence,
            limits=self._limits,
            on_pressure=self.flusher.run,
        )
        self.shared.read_journal = self._read_journal
        for log in self.logs.values():
            self._adopt(log)

    def _load_checkpoint(self) -> None:
        path = f"{self._data_dir}/{CHECKPOINT_FILE}"
        self._has_checkpoint = self._files.exists(path)
        if not self._has_checkpoint:
            self._trust_checkpoint = not self._files.list_dir(self._logs_dir)
            if not self._trust_checkpoint:
                self.shared.report(f"{path} is missing: every segment is read and verified instead")
            return
        try:
            self._checkpoint = decode_checkpoint(self._files.read_file(path))
        except CheckpointDamagedError as damage:
            self._trust_checkpoint = False
            self.shared.report(f"{path}: {damage}: every segment is read and verified instead")

    def _open(self, key: LogKey, config: TopicConfig) -> FileLog:
        return open_file_log(
            self.shared,
            key,
            self.directory_of(key),
            config,
            self._checkpoint.points.get(key),
            trust_checkpoint=self._trust_checkpoint,
        )

    def _read_journal(self) -> Iterator[JournalEntry]:
        released = self._checkpoint.released_sequence if self.flusher is None else self.flusher.released_sequence
        return recover(self._files, self._journal_dir, self._journal_id, released).entries()

    def _adopt(self, log: FileLog) -> FileLog:
        """Gives a log the means to get over a failed segment."""
        if log.is_journaled:
            assert self.flusher is not None
            log.repair = Repair(log, self.flusher).begin
        return log

    def _replay(self, entry: JournalEntry) -> None:
        log = self.logs.get(entry.key)
        if log is None:
            self.replayed.unknown += 1
        elif entry.kind is Mutation.LOG_START:
            log.start_offset = max(log.start_offset, min(entry.offset, log.end_offset))
        elif entry.header is not None and entry.header.base_offset >= log.end_offset:
            log.replay(entry.header, entry.batch)
            self.replayed.batches += 1
            self.replayed.bytes += len(entry.batch)
            self.replayed.logs.add(entry.key)

    def _sync_replayed(self) -> dict[LogKey, RecoveryPoint]:
        points: dict[LogKey, RecoveryPoint] = {}
        for key, log in self.logs.items():
            known = log.recovery_point
            if (
                key in self.replayed.logs
                or (known is not None and known.start_offset != log.start_offset)
                or (known is None and log.end_offset > 0)
            ):
                log.recovery_point = Flush.blocking(log)
            if log.recovery_point is not None:
                points[key] = log.recovery_point
        self._files.sync_dir(self._logs_dir)
        return points

    def _write_checkpoint(self, released: int, points: dict[LogKey, RecoveryPoint]) -> None:
        data = encode_checkpoint(Checkpoint(released, points))
        self._files.replace_file(f"{self._data_dir}/{CHECKPOINT_FILE}", data)

    def _set_unknown_aside(self) -> None:
        """A directory that no topic claims is kept (SAFETY 26), unless its name says that its topic was deleted."""
        known = {self.directory_of(key) for key in self.logs}
        for name in self._files.list_dir(self._logs_dir):
            path = f"{self._logs_dir}/{name}"
            if name.endswith(DELETED_SUFFIX):
                self._files.remove_tree(path)
            elif path not in known:
                target = self._free_place_aside(name)
                self._files.rename(path, target)
                self.shared.report(f"{path} belongs to no topic: moved to {target}")

    def _free_place_aside(self, name: str) -> str:
        self._files.make_dirs(f"{self._data_dir}/set-aside")
        target = f"{self._data_dir}/set-aside/{name}"
        number = 1
        while self._files.exists(target):
            number += 1
            target = f"{self._data_dir}/set-aside/{name}.{number}"
        return target

    # -- while serving ----------------------------------------------------------------------------------------

    def create(self, key: LogKey, config: TopicConfig) -> FileLog:
        """An empty log. Its directory comes with its first record, so this touches no disk."""
        log = FileLog.empty(self.shared, key, self.directory_of(key), config)
        self.logs[key] = log
        return self._adopt(log)

    def delete(self, log: FileLog) -> None:
        """Takes a log out at once; its files go in the background."""
        del self.logs[log.key]
        log.mark_deleted()
        self.shared.unsynced.discard(log)
        if self.flusher is not None:
            self.flusher.forget(log)
        self.shared.tail.forget(log)
        for segment in log.segments:
            segment.removed = True
        directory, gone = log.directory, log.directory + DELETED_SUFFIX

        def remove() -> None:
            if self._files.exists(directory):
                self._files.rename(directory, gone)
                self._files.sync_dir(self._logs_dir)  # else a power cut brings it back as one that no topic claims
                self._files.remove_tree(gone)

        def removed(_: None, error: BaseException | None) -> None:
            for segment in log.segments:
                segment.close()  # an open file keeps its space
            if error is not None:
                self.shared.report(f"{directory} could not be removed: {error}")

        def deletion_journaled(_: OSError | None) -> None:
            self.shared.disk.sync_queue.call(remove, removed)

        if log.is_journaled and self.shared.journal is not None and self.shared.journal.failed is None:
            self.shared.journal.append_mutation(log, Mutation.DELETE, 0, deletion_journaled)
        else:
            deletion_journaled(None)

    def close(self) -> None:
        if self.shared.journal is not None:
            self.shared.journal.close()
        for log in self.logs.values():
            log.close()
