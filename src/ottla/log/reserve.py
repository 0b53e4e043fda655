"""Space that is kept back, so that a full disk can still be left in order.

Segment space is allocated before a batch is taken, so data never meets a full disk half way. What remains are small
files: indexes, states, the checkpoint. Without them the journal's space could not be given back and every `disk` log
would stand still. They get this space; while it is gone, new batches are refused (SAFETY 12).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

from ottla.ports import FileSystem

RESERVE_BYTES = 8 * 1024 * 1024
T = TypeVar("T")


class SpaceReserve:
    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/reserve"
        self.is_held = False

    def hold(self) -> bool:
        """Takes the space if there is twice as much, so that giving and taking do not alternate. Blocking."""
        if self.is_held:
            return True
        if not self._files.exists(self._path) and self._files.free_bytes(self._directory) < 2 * RESERVE_BYTES:
            return False
        try:
            file = self._files.open(self._path, create=True)
            try:
                file.allocate(0, RESERVE_BYTES)
            finally:
                file.close()
        except OSError:
            return False
        self.is_held = True
        return True

    def use_for(self, job: Callable[[], T]) -> T:
        """Runs a job that writes small files; if the disk is full, once more with the reserve let go. Blocking."""
        try:
            return job()
        except OSError as error:
            if error.errno != errno.ENOSPC or not self.is_held:
                raise
            self.is_held = False
            self._files.remove(self._path)
            return job()
