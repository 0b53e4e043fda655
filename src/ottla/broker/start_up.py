"""Brings the logs of a data directory back, after a clean stop or a crash. Blocking.

Nothing that may be needed again is given up before the new checkpoint is durable, so a crash in the middle of a
start-up, and another start-up, give the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.log.checkpoint import Checkpoint, CheckpointDamagedError, RecoveryPoint, decode_checkpoint, encode_checkpoint
from ottla.log.file_log import FileLog
from ottla.log.flush import Flush
from ottla.log.journal import recover
from ottla.log.places import DELETED_SUFFIX, DataPlaces, key_of_log_name
from ottla.log.recovery import open_file_log
from ottla.log.recycling import RecycledFiles
from ottla.log.replay import Replay
from ottla.log.shared import SharedByLogs
from ottla.model.ids import LogKey
from ottla.model.topic_config import TopicConfig


class StartUp:
    def __init__(self, shared: SharedByLogs, places: DataPlaces, journal_id: bytes) -> None:
        self._shared = shared
        self._files = shared.disk.files
        self._places = places
        self._journal_id = journal_id
        self._checkpoint = Checkpoint()
        self._trust_checkpoint = True
        self._has_checkpoint = False
        self.logs: dict[LogKey, FileLog] = {}
        self.points: dict[LogKey, RecoveryPoint] = {}
        """As the new checkpoint has them."""
        self.last_sequence = 0
        """Of the journal: nothing up to here is needed any more."""
        self._replay = Replay(self._files, self.logs)
        self.replayed = self._replay.replayed

    def run(self, wanted: Iterable[tuple[LogKey, TopicConfig]]) -> None:
        """Opens every log of the catalog and replays what the segments miss."""
        self._prepare()
        self._load_checkpoint()
        for key, config in wanted:
            self.logs[key] = self._open(key, config)
        self._set_unknown_aside()
        rescued = self._take_rescued()
        self._replay_journal()
        self._sync_replayed()
        self._write_checkpoint()
        self._remove_rescued(rescued)

    def abandon(self) -> None:
        """It failed, and may be tried again."""
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
                self._shared.report(f"{path} is missing: every segment is read and verified instead")
            return
        try:
            self._checkpoint = decode_checkpoint(self._files.read_file(path))
        except CheckpointDamagedError as damage:
            self._trust_checkpoint = False
            self._shared.report(f"{path}: {damage}: every segment is read and verified instead")

    def _open(self, key: LogKey, config: TopicConfig) -> FileLog:
        return open_file_log(
            self._shared,
            key,
            self._places.directory_of(key),
            config,
            self._checkpoint.points.get(key),
            trust_checkpoint=self._trust_checkpoint,
        )

    # -- what the segments miss -------------------------------------------------------------------------------

    def _take_rescued(self) -> list[str]:
        """The directories of what was rescued: to be removed as soon as a checkpoint covers it."""
        taken: list[str] = []
        if not self._files.exists(self._places.rescued):
            return taken
        for name in self._files.list_dir(self._places.rescued):
            directory = f"{self._places.rescued}/{name}"
            key = key_of_log_name(name)
            log = self.logs.get(key) if key is not None else None
            if log is None:
                self._set_aside(directory, f"{name}.rescued")
            else:
                self._replay.take_rescued(log, directory)
                taken.append(directory)
        return taken

    def _remove_rescued(self, directories: list[str]) -> None:
        for directory in directories:
            self._files.remove_tree(directory)
        if directories:
            self._files.sync_dir(self._places.rescued)

    def _replay_journal(self) -> None:
        places, released = self._places, self._checkpoint.released_sequence
        recovered = recover(self._files, places.journal, self._journal_id, released)
        if self._has_checkpoint and not self._files.list_dir(places.journal):
            self._shared.report(
                f"{places.journal} is empty, acknowledged records may be missing: what was in it is lost"
            )
        for entry in recovered.entries():
            self._replay.take_entry(entry)
        for damage in recovered.damage:
            self._shared.report(f"the journal is damaged, acknowledged records may be missing: {damage}")
        self.last_sequence = recovered.last_sequence

    def _sync_replayed(self) -> None:
        for key, log in self.logs.items():
            known = log.recovery_point
            if (
                key in self.replayed.logs
                or (known is not None and known.start_offset != log.start_offset)
                or (known is None and log.end_offset > 0)
            ):
                log.recovery_point = Flush.blocking(log)
            if log.recovery_point is not None:
                self.points[key] = log.recovery_point
        self._files.sync_dir(self._places.logs)

    def _write_checkpoint(self) -> None:
        data = encode_checkpoint(Checkpoint(self.last_sequence, self.points))
        self._files.replace_file(self._places.checkpoint, data)

    # -- what no topic claims ---------------------------------------------------------------------------------

    def _set_unknown_aside(self) -> None:
        """A directory that no topic claims is kept (SAFETY 26), unless its name says that its topic was deleted."""
        known = {self._places.directory_of(key) for key in self.logs}
        for name in self._files.list_dir(self._places.logs):
            path = f"{self._places.logs}/{name}"
            if name.endswith(DELETED_SUFFIX):
                self._files.remove_tree(path)
            elif path not in known:
                self._set_aside(path, name)

    def _set_aside(self, path: str, name: str) -> None:
        self._files.make_dirs(self._places.set_aside)
        target = f"{self._places.set_aside}/{name}"
        number = 1
        while self._files.exists(target):
            number += 1
            target = f"{self._places.set_aside}/{name}.{number}"
        self._files.rename(path, target)
        self._shared.report(f"{path} belongs to no topic: moved to {target}")
