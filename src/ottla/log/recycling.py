"""Files of expired segments, kept to become new ones of the same log.

Writing into a file that has its blocks and its pages costs a fraction of growing one (DATAPATH 2). A log of a minute's
retention expires as fast as it grows, so its files go round.

What follows the end of a recycled segment is older data with valid checksums. Because it is of the same log, all of
its offsets are below the new segment's first one, so no reader of the file takes the old for the new: whatever lies
behind the end of a log has lower offsets, and batches follow one another without a gap.

All calls are on the event loop's thread but `park`, which a disk thread makes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ottla.model.ids import LogKey
from ottla.ports import FileSystem

KEPT_BYTES_MAX = 1024 * 1024 * 1024
DEMAND_WINDOW_MS = 60_000.0


@dataclass(slots=True)
class FilesOfLog:
    ready: deque[tuple[str, int]] = field(default_factory=deque)
    """(path, size) of files that wait for use."""
    parking: int = 0
    asked_at: deque[float] = field(default_factory=deque)

    def wants_another(self, now_ms: float) -> bool:
        """As many are kept as segments were begun in the last minute."""
        while self.asked_at and now_ms - self.asked_at[0] > DEMAND_WINDOW_MS:
            self.asked_at.popleft()
        return len(self.ready) + self.parking < len(self.asked_at)


class RecycledFiles:
    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._by_log: dict[LogKey, FilesOfLog] = {}
        self._number = 0
        self.kept_bytes = 0

    def clear(self) -> None:
        """At start-up: what an earlier run left is of no use, nobody knows how it was used. Blocking."""
        if self._files.exists(self._directory):
            self._files.remove_tree(self._directory)
        self._files.make_dirs(self._directory)

    def place_for(self, log: LogKey, size: int, now_ms: float) -> str | None:
        """Where an expired segment's file may go, or None if it is not wanted."""
        files = self._by_log.get(log)
        if files is None or not files.wants_another(now_ms) or self.kept_bytes + size > KEPT_BYTES_MAX:
            return None
        self._number += 1
        files.parking += 1
        self.kept_bytes += size
        return f"{self._directory}/{self._number:08d}"

    def park(self, source: str, target: str) -> None:
        """Blocking, on a disk thread."""
        self._files.rename(source, target)

    def parked(self, log: LogKey, path: str, size: int, error: BaseException | None) -> str | None:
        """The path if the file is of no use: its log was deleted meanwhile."""
        files = self._by_log.get(log)
        if files is None or error is not None:
            self.kept_bytes -= size
        if files is None:
            return path if error is None else None
        files.parking -= 1
        if error is None:
            files.ready.append((path, size))
        return None

    def take(self, log: LogKey, target: str, segment_bytes: int, now_ms: float) -> int | None:
        """Gives a file the name of a new segment; its size, or None if there is none that fits."""
        files = self._by_log.setdefault(log, FilesOfLog())
        files.asked_at.append(now_ms)
        for entry in files.ready:
            path, size = entry
            if segment_bytes // 2 <= size <= segment_bytes:
                files.ready.remove(entry)
                self.kept_bytes -= size
                try:
                    self._files.rename(path, target)
                except OSError:
                    return None
                return size
        return None

    def give_up(self) -> list[str]:
        """The disk is full: these files are to be removed."""
        return [path for files in self._by_log.values() for path in self._empty(files)]

    def forget(self, log: LogKey) -> list[str]:
        """The log is deleted: these files are to be removed."""
        files = self._by_log.pop(log, None)
        return self._empty(files) if files is not None else []

    def _empty(self, files: FilesOfLog) -> list[str]:
        paths = [path for path, _ in files.ready]
        self.kept_bytes -= sum(size for _, size in files.ready)
        files.ready.clear()
        return paths
