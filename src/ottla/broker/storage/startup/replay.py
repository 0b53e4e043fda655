"""Replays into the logs, at start-up, what their segments lack: rescued files and the journal. Blocking.

Both follow one rule (safety: journal-order): a batch is appended at the end of its log. A batch that the log already
has is skipped. A gap is damage: it is recorded, and the log continues above it.

A rescued file is replayed as soon as its log reaches it. That is before the journal, unless the journal still has a
truncation: the log is then opened up to the truncation only, and the journal fills what lies between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.broker.storage.contract import Damage
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.journal import JournalEntry, Mutation
from ottla.broker.storage.startup.corrupt_epochs import distrust_epochs_above
from ottla.broker.storage.startup.journal_truncations import JournalTruncations
from ottla.broker.storage.startup.rescue import RescuedFile, read_rescued, rescued_files
from ottla.ports import FileSystem
from ottla.protocol.model.ids import LogKey
from ottla.protocol.records.batch import BatchHeader
from ottla.reach import branch

_REPLAYED = branch("the journal is replayed into a segment", __name__)
_RESCUED = branch("rescued records are replayed at a start", __name__)
_LATER = branch("the journal is replayed before rescued records", __name__)
_UNDONE = branch("a journaled append is undone by a later truncation", __name__)
_GAP = branch("a log continues above lost records", __name__)


@dataclass(slots=True)
class ReplaySummary:
    """What a start-up replayed, for logging and metrics."""

    batches: int = 0
    bytes: int = 0
    logs: set[LogKey] = field(default_factory=set)
    unclaimed: dict[LogKey, list[tuple[int, int]]] = field(default_factory=dict)
    """Journal entries of logs that no topic claims: (first, end) of each contiguous run of batches."""
    deleted: set[LogKey] = field(default_factory=set)
    """Logs whose deletion is in the journal."""


class Replay:
    """Replays rescued files and journal entries into opened logs."""

    def __init__(self, files: FileSystem, logs: Mapping[LogKey, FileLog]) -> None:
        self._files = files
        self._logs = logs
        self.replayed = ReplaySummary()
        self.cuts = JournalTruncations()
        self._lost: dict[LogKey, Damage] = {}
        """Batches that the journal is known to have lost of each log, up to the current entry."""
        self._rescued: dict[LogKey, deque[RescuedFile]] = {}
        """Rescued files that their logs have not reached yet, in the order of their offsets."""

    def take_rescued(self, log: FileLog, directory: str) -> None:
        """Replays the rescued files of one log, as far as it has reached them."""
        self._rescued[log.key] = deque(rescued_files(self._files, directory))
        self._take_rescued_up_to(log, log.end_offset)
        if self._rescued.get(log.key):
            _LATER()

    def _take_rescued_up_to(self, log: FileLog, offset: int) -> None:
        """Replays the rescued files that begin at or below the offset, or at or below the log's end."""
        files = self._rescued.get(log.key, ())
        while files and files[0].first_offset <= max(offset, log.end_offset):
            self._take_file(log, files.popleft())

    def _take_file(self, log: FileLog, rescued: RescuedFile) -> None:
        _RESCUED()
        for _, header, batch in read_rescued(self._files, rescued):
            self._take_batch(log, header, batch)
        if log.end_offset < rescued.end_offset:
            reason = f"{rescued.path} could not be read back to its end"
            go_on_above(log, damage_at_end(log, log.end_offset, rescued.end_offset, reason))
            self.replayed.logs.add(log.key)

    def take_entry(self, entry: JournalEntry) -> None:
        """Replays one journal entry."""
        log = self._logs.get(entry.key)
        if self.cuts.takes_back(entry):
            _UNDONE()
            return
        if log is None:
            self._note_unclaimed(entry)
            return
        if self._rescued and entry.kind is Mutation.APPEND:
            self._take_rescued_up_to(log, entry.offset)
        if entry.is_lost:
            self._note_lost(log, entry)
            return
        self._pass_lost(log)
        if entry.kind is Mutation.LOG_START:
            log.start_offset = max(log.start_offset, min(entry.offset, log.end_offset))
        elif entry.header is not None:
            self._take_batch(log, entry.header, entry.batch)

    def end(self) -> None:
        """Ends the replay. A log whose last entries are lost continues above them, too."""
        for key, files in self._rescued.items():
            while files:
                self._take_file(self._logs[key], files.popleft())
        for key in list(self._lost):
            self._pass_lost(self._logs[key])

    def _note_lost(self, log: FileLog, entry: JournalEntry) -> None:
        known = self._lost.get(log.key)
        end = known.next_offset if known is not None else log.end_offset
        if entry.next_offset > end:
            first = known.first_offset if known is not None else end
            reason = f"the entry {entry.sequence} of the journal does not match its checksum"
            self._lost[log.key] = damage_at_end(log, first, entry.next_offset, reason)

    def _pass_lost(self, log: FileLog) -> None:
        lost = self._lost.pop(log.key, None)
        if lost is not None:
            go_on_above(log, lost)
            self.replayed.logs.add(log.key)

    def _note_unclaimed(self, entry: JournalEntry) -> None:
        if entry.kind is Mutation.DELETE:
            self.replayed.deleted.add(entry.key)
        if entry.header is None:
            return
        runs = self.replayed.unclaimed.setdefault(entry.key, [])
        first, end = entry.header.base_offset, entry.header.next_offset
        if runs and runs[-1][1] == first:
            first = runs.pop()[0]
        runs.append((first, end))

    def _take_batch(self, log: FileLog, header: BatchHeader, batch: memoryview) -> None:
        if header.base_offset >= log.end_offset:
            # Each journal entry is checksummed as a whole, so it is the end of the segments that is wrong.
            distrust_epochs_above(log, header.leader_epoch)
            _REPLAYED()
            log.replay(header, batch)
            self.replayed.batches += 1
            self.replayed.bytes += len(batch)
            self.replayed.logs.add(log.key)


def damage_at_end(log: FileLog, first_offset: int, next_offset: int, reason: str) -> Damage:
    """Returns a damage after the end of the log."""
    return Damage(log.active.path, log.active.appended_end, first_offset, next_offset, reason)


def go_on_above(log: FileLog, damage: Damage) -> None:
    """Continues a log above offsets that are lost. The loss is recorded, so that no reader skips it silently, and the
    offsets are not assigned to other records (safety: one-history)."""
    _GAP()
    log.damages.record(damage)
    log.end_offset = damage.next_offset
    log.on_journaled(log.end_offset)
    log.writer.thaw(log.end_offset)
    log.roll()
