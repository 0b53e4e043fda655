"""Files of expired segments, kept to become new ones.

Writing into a file that has its blocks and its pages costs a fraction of growing one (DATAPATH 2). A log of a minute's
retention expires as fast as it grows, so its files go round.

Only for `disk` logs: what follows the end of a recycled segment is an older segment's data, and only the checkpoint
and the journal tell them apart. A `cache` log is read to its end after a crash, and could take the old for the new.

All calls are on the event loop's thread but `park`, which a disk thread makes.
"""

from __future__ import annotations

from collections import deque

from ottla.ports import FileSystem

KEPT_BYTES_MAX = 1024 * 1024 * 1024
DEMAND_WINDOW_MS = 60_000.0


class RecycledFiles:
    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._ready: deque[tuple[str, int]] = deque()
        """(path, size) of files that wait for use."""
        self._parking = 0
        self._number = 0
        self._asked_at: deque[float] = deque()

    @property
    def kept_bytes(self) -> int:
        return sum(size for _, size in self._ready)

    def clear(self) -> None:
        """At start-up: what an earlier run left is of no use, nobody knows how it was used. Blocking."""
        if self._files.exists(self._directory):
            self._files.remove_tree(self._directory)
        self._files.make_dirs(self._directory)

    def place_for(self, size: int, now_ms: float) -> str | None:
        """Where an expired segment's file may go, or None if it is not wanted: as many are kept as segments were begun
        in the last minute."""
        while self._asked_at and now_ms - self._asked_at[0] > DEMAND_WINDOW_MS:
            self._asked_at.popleft()
        waiting = len(self._ready) + self._parking
        if waiting >= len(self._asked_at) or self.kept_bytes + size > KEPT_BYTES_MAX:
            return None
        self._number += 1
        self._parking += 1
        return f"{self._directory}/{self._number:08d}"

    def park(self, source: str, target: str) -> None:
        """Blocking, on a disk thread."""
        self._files.rename(source, target)

    def parked(self, path: str, size: int, error: BaseException | None) -> None:
        self._parking -= 1
        if error is None:
            self._ready.append((path, size))

    def take(self, target: str, segment_bytes: int, now_ms: float) -> int | None:
        """Gives a file the name of a new segment; its size, or None if there is none that fits."""
        self._asked_at.append(now_ms)
        for entry in self._ready:
            path, size = entry
            if segment_bytes // 2 <= size <= segment_bytes:
                self._ready.remove(entry)
                try:
                    self._files.rename(path, target)
                except OSError:
                    return None
                return size
        return None

    def give_up(self) -> list[str]:
        """The disk is full: these files are to be removed."""
        paths = [path for path, _ in self._ready]
        self._ready.clear()
        return paths
