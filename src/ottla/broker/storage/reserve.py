"""Disk space held in reserve, so that a broker with a full disk can still flush, stop and start again.

Segment space is allocated before a batch is accepted. Data therefore never hits a full disk halfway, and a restart
replays the journal into space that the segments already have. The remaining writes are small files: indexes, states,
the checkpoint, the catalog. Without them the journal's space could not be released, every `disk` log would stall, and a
broker that was killed could not start again. These files use the reserve, one piece at a time, so that some is left for
the start after a crash. While any of it is missing, new batches are rejected (safety: full-disk).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import TypeVar

from ottla.ports import FileSystem
from ottla.reach import branch

_USED = branch("a part of the space reserve is used", __name__)
_HELD_AGAIN = branch("the space reserve is complete again", __name__)

PIECE_BYTES = 1024 * 1024
PIECES = 8
RESERVE_BYTES = PIECES * PIECE_BYTES
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
T = TypeVar("T")


class SpaceReserve:
    """The files `reserve-1` to `reserve-8`, which only hold space. All methods are blocking."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._pieces: list[str] = []
        """Paths of the pieces that are allocated."""
        self.is_held = False
        """True if the whole reserve is allocated."""

    def hold(self) -> bool:
        """Allocates the missing pieces if as much space again would remain free, so that releasing and allocating do
        not alternate. Returns whether the whole reserve is held."""
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
            if present:
                _HELD_AGAIN()
        self.is_held = True
        return True

    def use_for(self, job: Callable[[], T]) -> T:
        """Runs a job that can be repeated. Each time it fails because the disk is full, one piece is released and the
        job is retried."""
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
        """Allocates a piece and reports success. For a piece that already has its space, this changes nothing."""
        try:
            file = self._files.open(path, create=create)
            try:
                file.allocate(0, PIECE_BYTES)
                if create:  # without it, a power cut would free the space for others
                    file.sync()
            finally:
                file.close()
        except OSError:
            return False
        return True

    def _let_go(self) -> bool:
        """Releases one piece. False if there is none left. Another thread may do the same concurrently."""
        _USED()
        self.is_held = False
        try:
            path = self._pieces.pop()
        except IndexError:
            return False
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(path)
        return True
