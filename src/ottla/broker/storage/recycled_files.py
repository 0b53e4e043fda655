"""Recycles the files of expired segments as new segments of the same log.

Overwriting a file that already has its blocks and pages costs a fraction of growing a new one (0.10 CPU s/GB against
0.25 to 0.93). A log with a retention of one minute expires data as fast as it grows, so its files can be reused in
turn.

The bytes after the end of a recycled segment are older data with valid checksums. They belong to the same log, so all
of their offsets are below the first offset of the new segment. Batches follow one another without a gap, so no reader
mistakes these lower offsets for new data.

All methods run on the event loop's thread, except `park`, which runs on a disk thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ottla.ports import FileSystem
from ottla.protocol.model.ids import LogKey

KEPT_BYTES_MAX = 1024 * 1024 * 1024
DEMAND_WINDOW_MS = 60_000.0


@dataclass(slots=True)
class RecycledLogFiles:
    """The recycled files of one log, and how often it asked for one lately."""

    ready: deque[tuple[str, int]] = field(default_factory=deque)
    """(path, size) of the files that are ready for use."""
    parking: int = 0
    """Number of files that are being moved here."""
    asked_at: deque[float] = field(default_factory=deque)

    def wants_another(self, now_ms: float) -> bool:
        """Reports whether to keep another file. The limit is the number of segments begun in the last minute."""
        while self.asked_at and now_ms - self.asked_at[0] > DEMAND_WINDOW_MS:
            self.asked_at.popleft()
        return len(self.ready) + self.parking < len(self.asked_at)


class RecycledFiles:
    """The recycled files of all logs, at most `KEPT_BYTES_MAX` bytes in total."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._by_log: dict[LogKey, RecycledLogFiles] = {}
        self._number = 0
        self.kept_bytes = 0

    def clear(self) -> None:
        """Removes the files of an earlier run, whose contents are unknown. Called at start-up. Blocking."""
        if self._files.exists(self._directory):
            self._files.remove_tree(self._directory)
        self._files.make_dirs(self._directory)

    def place_for(self, log: LogKey, size: int, now_ms: float) -> str | None:
        """Returns the path to move an expired segment's file to, or None if the file is not wanted."""
        files = self._by_log.get(log)
        if files is None or not files.wants_another(now_ms) or self.kept_bytes + size > KEPT_BYTES_MAX:
            return None
        self._number += 1
        files.parking += 1
        self.kept_bytes += size
        return f"{self._directory}/{self._number:08d}"

    def park(self, source: str, target: str) -> None:
        """Moves a segment's file here. Blocking, on a disk thread."""
        self._files.rename(source, target)

    def parked(self, log: LogKey, path: str, size: int, error: BaseException | None) -> str | None:
        """Records the end of `park`. Returns the path if the file must be removed because its log was deleted
        meanwhile."""
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
        """Renames a recycled file to `target`. Returns its size, or None if no file fits."""
        files = self._by_log.setdefault(log, RecycledLogFiles())
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
        """Gives up all files because the disk is full. Returns the paths to remove."""
        return [path for files in self._by_log.values() for path in self._empty(files)]

    def forget(self, log: LogKey) -> list[str]:
        """Gives up the files of a deleted log. Returns the paths to remove."""
        files = self._by_log.pop(log, None)
        return self._empty(files) if files is not None else []

    def _empty(self, files: RecycledLogFiles) -> list[str]:
        paths = [path for path, _ in files.ready]
        self.kept_bytes -= sum(size for _, size in files.ready)
        files.ready.clear()
        return paths
