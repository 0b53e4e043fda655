"""Recovers the logs of a data directory after a clean stop or a crash. Blocking.

Nothing that may be needed again is discarded before the new checkpoint is durable. Recovery is therefore idempotent:
after a crash in the middle of it, the next start-up gives the same result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ottla.broker.storage.data_layout import DataLayout, key_of_log_name
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.flush import recovery_point_of
from ottla.broker.storage.journal import RecoveredJournal, recover
from ottla.broker.storage.log_resources import LogResources
from ottla.broker.storage.recycled_files import RecycledFiles
from ottla.broker.storage.startup.checkpoint import (
    Checkpoint,
    CheckpointDamagedError,
    RecoveryPoint,
    decode_checkpoint,
    encode_checkpoint,
)
from ottla.broker.storage.startup.journal_truncations import JournalTruncations
from ottla.broker.storage.startup.recovery import open_file_log
from ottla.broker.storage.startup.replay import Replay
from ottla.broker.storage.startup.startup_sync import settle
from ottla.broker.storage.truncation import beginning_at, lowered_point
from ottla.broker.topics.leftovers import Leftovers
from ottla.ports import SyncAll
from ottla.protocol.model.ids import LogKey, TopicId
from ottla.protocol.model.topic_config import TopicConfig
from ottla.reach import branch

_LOWERED = branch("a start lowers a recovery point to a truncation in the journal", __name__)
_NO_CHECKPOINT = branch("a start cannot trust the checkpoint", __name__)
_LACKS = branch("a start cannot tell which logs lost journal entries", __name__)


class LogRecovery:
    """One recovery of a data directory."""

    def __init__(
        self, shared: LogResources, places: DataLayout, journal_id: bytes, deleted: Collection[TopicId]
    ) -> None:
        self._shared = shared
        self._files = shared.disk.files
        self._places = places
        self._journal_id = journal_id
        self._checkpoint = Checkpoint()
        self._trust_checkpoint = True
        self._has_checkpoint = False
        self.logs: dict[LogKey, FileLog] = {}
        self.points: dict[LogKey, RecoveryPoint] = {}
        """The recovery points of the new checkpoint."""
        self.may_lack_entries = False
        """The journal lost entries of unknown logs, so any `disk` log may end too early."""
        self.last_sequence = 0
        """Last sequence of the journal; no entry up to it is needed any more."""
        self._leftovers = Leftovers(self._files, places, shared.report, deleted)
        self._replay = Replay(self._files, self.logs)
        self.replayed = self._replay.replayed

    def run(self, wanted: Iterable[tuple[LogKey, TopicConfig]]) -> None:
        """Opens every log of the catalog and replays the journal entries that its segments lack."""
        sync_all = self._files.begin_sync_all(self._places.data_dir)
        try:
            self._run(wanted, sync_all)
        finally:
            if sync_all is not None:
                sync_all.close()

    def _run(self, wanted: Iterable[tuple[LogKey, TopicConfig]], sync_all: SyncAll | None) -> None:
        self._prepare()
        self._load_checkpoint()
        recovered = self._read_journal()
        if recovered.truncates:
            self._replay.cuts = JournalTruncations.of(recovered.entries())
            self._lower_points(self._replay.cuts)
        for key, config in wanted:
            self.logs[key] = self._open(key, config)
        self._leftovers.sort_out(self.logs)
        rescued = self._take_rescued()
        self._replay_journal(recovered)
        self._leftovers.keep_entries(self.replayed, recovered.entries)
        self._sync_replayed(sync_all)
        self._write_checkpoint()
        self._remove_rescued(rescued)

    def abandon(self) -> None:
        """Closes the logs after a failure, so that recovery can be tried again."""
        for log in self.logs.values():
            log.close()

    def _prepare(self) -> None:
        places = self._places
        self._files.make_dirs(places.logs)
        self._files.make_dirs(places.journal)
        self._shared.recycled = RecycledFiles(self._files, places.recycled)
        self._shared.recycled.clear()

    def _load_checkpoint(self) -> None:
        path = self._places.checkpoint
        self._has_checkpoint = self._files.exists(path)
        if not self._has_checkpoint:
            self._trust_checkpoint = not self._files.list_dir(self._places.logs)
            if not self._trust_checkpoint:
                _NO_CHECKPOINT()
                self._shared.report(f"{path} is missing: verifying every segment")
            return
        try:
            self._checkpoint = decode_checkpoint(self._files.read_file(path))
        except CheckpointDamagedError as damage:
            _NO_CHECKPOINT()
            self._trust_checkpoint = False
            self._shared.report(f"{path}: {damage}: verifying every segment")

    def _open(self, key: LogKey, config: TopicConfig) -> FileLog:
        return open_file_log(
            self._shared,
            key,
            self._places.directory_of(key),
            config,
            self._checkpoint.points.get(key),
            trust_checkpoint=self._trust_checkpoint,
        )

    # -- replay -----------------------------------------------------------------------------------------------

    def _take_rescued(self) -> list[str]:
        """Replays rescued batches and returns their directories, which are removed once a checkpoint covers them."""
        taken: list[str] = []
        if not self._files.exists(self._places.rescued):
            return taken
        for name in self._files.list_dir(self._places.rescued):
            key = key_of_log_name(name)
            assert key is not None, "others were sorted out"
            taken.append(f"{self._places.rescued}/{name}")
            self._replay.take_rescued(self.logs[key], taken[-1])
        return taken

    def _remove_rescued(self, directories: list[str]) -> None:
        for directory in directories:
            self._files.remove_tree(directory)
        if directories:
            self._files.sync_dir(self._places.rescued)

    def _read_journal(self) -> RecoveredJournal:
        return recover(self._files, self._places.journal, self._journal_id, self._checkpoint.released_sequence)

    def _lower_points(self, cuts: JournalTruncations) -> None:
        """Lowers the recovery points durably before any file is truncated (safety: recovered-log). Otherwise, after a
        crash in the middle of this start-up, the truncated files would look damaged."""
        points = self._checkpoint.points
        lowered: dict[LogKey, RecoveryPoint] = {}
        for key, cut in cuts.lowest().items():
            if cut.resets:
                lowered[key] = beginning_at(cut.offset)
            elif key in points and cut.offset < points[key].offset:
                lowered[key] = lowered_point(self._files, self._places.directory_of(key), points[key], cut.offset)
        if lowered:
            _LOWERED()
            points.update(lowered)
            data = encode_checkpoint(self._checkpoint)
            self._shared.with_reserve(lambda: self._files.replace_file(self._places.checkpoint, data))

    def _replay_journal(self, recovered: RecoveredJournal) -> None:
        places = self._places
        if self._has_checkpoint and not self._files.list_dir(places.journal):
            self.may_lack_entries = True
            self._shared.report(
                f"{places.journal} is empty, acknowledged records may be missing: what was in it is lost"
            )
        for entry in recovered.entries(with_lost=True):
            self._replay.take_entry(entry)
        self._replay.end()
        for damage in recovered.damage:
            self.may_lack_entries |= damage.keys is None
            self._shared.report(f"the journal is damaged, acknowledged records may be missing: {damage}")
        self._keep_in_mind_what_is_lost()
        self.last_sequence = recovered.last_sequence

    def _keep_in_mind_what_is_lost(self) -> None:
        """Records the loss durably. The new checkpoint hides it, and a crash must not make it forgotten before it is
        reported."""
        path = self._places.lost_entries
        if self._files.exists(path):
            self.may_lack_entries = True
        elif self.may_lack_entries:
            _LACKS()
            self._files.replace_file(path, b"The journal lost entries, and nobody knows whose.\n")

    def _sync_replayed(self, sync_all: SyncAll | None) -> None:
        changed = [log for log in self.logs.values() if self._has_changed(log)]
        settle(changed, sync_all)
        self._files.sync_dir(self._places.logs)
        for log in changed:
            log.durable.recovery_point = recovery_point_of(log)
        points = {key: log.durable.recovery_point for key, log in self.logs.items()}
        self.points = {key: point for key, point in points.items() if point is not None}

    def _has_changed(self, log: FileLog) -> bool:
        """Whether the log has changed since the checkpoint."""
        known = log.durable.recovery_point
        if log.key in self.replayed.logs:
            return True
        return log.end_offset > 0 if known is None else known.start_offset != log.start_offset

    def _write_checkpoint(self) -> None:
        data = encode_checkpoint(Checkpoint(self.last_sequence, self.points))
        self._files.replace_file(self._places.checkpoint, data)
