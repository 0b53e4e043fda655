"""Handles logs without a topic that start-up finds in the data directory. Blocking.

If the topic was deleted, its files are removed: the broker crashed between the deletion and the removal. Otherwise
their owner is unknown (the catalog may be an old one), so they are reported and moved to `set-aside`
(safety: topic-identity).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ottla.broker.storage.data_layout import DELETED_SUFFIX, DataLayout, key_of_log_name, log_name
from ottla.broker.storage.journal import JournalEntry
from ottla.broker.storage.startup.replay import ReplaySummary
from ottla.broker.storage.startup.rescue import batches_between, standing_entries, write_rescued
from ottla.ports import FileSystem
from ottla.protocol.model.ids import LogKey, TopicId
from ottla.reach import branch

_REMOVED = branch("the files of a deleted topic are removed at a start", __name__)
_SET_ASIDE = branch("a log of an unknown topic is set aside", __name__)


class Leftovers:
    """Removes or sets aside the logs of unknown topics."""

    def __init__(
        self, files: FileSystem, places: DataLayout, report: Callable[[str], None], deleted: Collection[TopicId]
    ) -> None:
        self._files = files
        self._places = places
        self._report = report
        self._deleted = deleted

    def sort_out(self, known: Collection[LogKey]) -> None:
        """Handles the directories of logs, and of batches rescued from logs, that belong to no known log."""
        names = {log_name(key) for key in known}
        for name in self._files.list_dir(self._places.logs):
            if name.endswith(DELETED_SUFFIX):
                self._files.remove_tree(f"{self._places.logs}/{name}")
            elif name not in names:
                self._remove_or_keep(f"{self._places.logs}/{name}", name, name)
        if self._files.exists(self._places.rescued):
            for name in self._files.list_dir(self._places.rescued):
                if name not in names:
                    self._remove_or_keep(f"{self._places.rescued}/{name}", name, f"{name}.rescued")

    def _remove_or_keep(self, path: str, name: str, name_aside: str) -> None:
        key = key_of_log_name(name)
        if key is not None and key.topic_id in self._deleted:
            _REMOVED()
            self._files.remove_tree(path)
            self._files.sync_dir(path.rpartition("/")[0])
            return
        _SET_ASIDE()
        self._files.make_dirs(self._places.set_aside)
        target = f"{self._places.set_aside}/{name_aside}"
        number = 1
        while self._files.exists(target):
            number += 1
            target = f"{self._places.set_aside}/{name_aside}.{number}"
        self._files.rename(path, target)
        self._report(f"{path} belongs to no topic: moved to {target}")

    def keep_entries(self, replayed: ReplaySummary, read: Callable[[], Iterator[JournalEntry]]) -> None:
        """Saves journaled batches of logs that are neither known nor deleted, before the journal drops them. If
        start-up is interrupted here, the next one does the same again."""
        for key, runs in replayed.unclaimed.items():
            if key in replayed.deleted or key.topic_id in self._deleted:
                continue
            directory = f"{self._places.set_aside}/{log_name(key)}.journal"
            for first, end in runs:
                write_rescued(
                    self._files, directory, batches_between(standing_entries(read), key, first, end), first, end
                )
                self._report(
                    f"the journal has offsets {first} to {end - 1} of {log_name(key)}, which belongs to no topic: "
                    f"they are kept in {directory}"
                )
