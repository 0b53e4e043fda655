"""Space that is kept back, so that a full disk can still be left in order.

Segment space is allocated before a batch is taken, so data never meets a full disk half way, and a restart replays the
journal into space that the segments have already. What remains are small files: indexes, states, the checkpoint, the
catalog. Without them the journal's space could not be given back, every `disk` log would stand still, and a broker that
was killed could not start again. They get this space, a piece at a time, so that there is some left for the start after
a crash; while any of it is gone, new batches are refused (SAFETY 12).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import TypeVar

from ottla.ports import FileSystem

PIECE_BYTES = 1024 * 1024
PIECES = 8
RESERVE_BYTES = PIECES * PIECE_BYTES
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
T = TypeVar("T")


class SpaceReserve:
    """Files `reserve-1` to `reserve-8` that hold space and nothing else. Every call is blocking."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._pieces: list[str] = []
        """The paths of those that have their space."""
        self.is_held = False
        """All of it is there."""

    def hold(self) -> bool:
        """Takes what is missing if there is as much again on top, so that giving and taking do not alternate."""
        if self.is_held:
            return True
        paths = [f"{self._directory}/reserve-{number + 1}" for number in range(PIECES)]
        present = [path for path in paths if self._files.exists(path)]
        self._pieces = [path for path in present if self._has_space(path)]
        missing = [path for path in paths if path not in self._pieces]
        if missing:
            wanted_bytes = len(missing) * PIECE_BYTES + RESERVE_BYTES
            if self._files.free_bytes(self._directory) < wanted_bytes or not all(map(self._take, missing)):
                return False
            self._files.sync_dir(self._directory)
        self.is_held = True
        return True

    def use_for(self, job: Callable[[], T]) -> T:
        """Runs a job that may be run again; as long as the disk is full for it, once more with another piece let go."""
        while True:
            try:
                return job()
            except OSError as error:
                if error.errno not in _FULL or not self._let_go():
                    raise

    def _take(self, path: str) -> bool:
        if not self._has_space(path, create=True):
            return False
        self._pieces.append(path)
        return True

    def _has_space(self, path: str, *, create: bool = False) -> bool:
        """Asks for it: for a piece that has its space already, that changes nothing."""
        try:
            file = self._files.open(path, create=create)
            try:
                file.allocate(0, PIECE_BYTES)
                if create:  # a power cut would give the space to the first who asks
                    file.sync()
            finally:
                file.close()
        except OSError:
            return False
        return True

    def _let_go(self) -> bool:
        """False if there is nothing left. Another thread may do the same at the same time."""
        self.is_held = False
        try:
            path = self._pieces.pop()
        except IndexError:
            return False
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(path)
        return True
