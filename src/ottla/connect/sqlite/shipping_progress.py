"""Lets programs wait until their commits are in the log.

The connector writes its progress to a small file next to the database (NAME-ottla) after the log has acknowledged it.
It keeps the file locked while it runs, so progress that a dead connector left behind is ignored.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.sqlite.wal_format import Salts, WalPosition
from ottla.connect.sqlite.wal_index import LOOK_BYTES, UnsteadyIndexError, WalIndex, WalState

SUFFIX = "-ottla"
_MAGIC = b"OSQS"
_PROGRESS = struct.Struct(">4s5IqI")
_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.005
_LOCK_EVERY_S = 0.02
LOCK_PATIENCE_S = 10.0
"""How long a connector waits for the previous one to exit after its supervisor was killed."""


class NotShippedError(ConnectorError):
    """The transaction is committed, but was not in the log before the timeout. It may still get there."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The content of the progress file."""

    salts: Salts
    """The salts of the WAL that is being read."""
    previous: Salts
    """The salts of the WAL before it, which was shipped completely."""
    frame: int
    transaction: int

    def knows(self, state: WalState) -> bool:
        """Returns whether `state` can be compared with this progress.

        If not, the WAL was restarted more than once since. Read the state again: a newer one covers all earlier
        commits.
        """
        return state.salts in (self.salts, self.previous)

    def has(self, state: WalState) -> bool:
        """Returns whether everything committed at `state` is in the log."""
        if self.salts == state.salts:
            return self.frame >= state.frames
        # A WAL is restarted only after all of the one before was shipped, so an empty WAL has nothing left to ship.
        return self.previous == state.salts or state.frames == 0


class ProgressFile:
    """The progress file, which the connector writes while other processes read it. Its lock admits one connector per
    database."""

    def __init__(self, database: Path, patience_s: float = LOCK_PATIENCE_S) -> None:
        self._file = os.open(f"{database}{SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._salts = self._previous = (0, 0)
        if not _lock(self._file, patience_s):
            os.close(self._file)
            raise NeedsHelpError(f"another `ottla connect sqlite` already follows {database}")
        self.forget()

    def write(self, place: WalPosition, transaction: int) -> None:
        """Records that everything up to `place` is in the log."""
        if place.salts != self._salts:
            self._previous, self._salts = self._salts, place.salts
        body = _PROGRESS.pack(_MAGIC, *self._salts, *self._previous, place.frame, transaction, 0)[:-4]
        os.pwrite(self._file, body + crc32c(body).to_bytes(4, "big"), 0)

    def forget(self) -> None:
        """Clears the progress."""
        self._salts = self._previous = (0, 0)
        os.pwrite(self._file, bytes(_PROGRESS.size), 0)

    def close(self) -> None:
        """Clears the progress, so that waiting programs see no stale one, and releases the lock."""
        self.forget()
        os.close(self._file)


def _lock(file: int, patience_s: float) -> bool:
    """Locks the file. Retries, because waiting programs take a shared lock for a moment to see whether a connector
    runs."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOCK_EVERY_S)


class _Watched:
    """The files that `wait_shipped` reads.

    They stay open forever: closing the -shm file would drop SQLite's locks in this process.
    """

    def __init__(self, database: Path) -> None:
        self.index = WalIndex(database)
        self._file = os.open(f"{database}{SUFFIX}", os.O_RDONLY | os.O_CLOEXEC)
        self._memory = mmap.mmap(self._file, _PROGRESS.size, prot=mmap.PROT_READ)
        self._guard = threading.Lock()

    def progress(self) -> Progress | None:
        """Returns the progress; None if there is none or no connector runs."""
        content = self._memory[: _PROGRESS.size]
        if crc32c(content[:-4]) != int.from_bytes(content[-4:], "big"):
            return None
        magic, salt_1, salt_2, previous_1, previous_2, frame, transaction, _ = _PROGRESS.unpack(content)
        if magic != _MAGIC or not self._is_kept_up():
            return None
        return Progress((salt_1, salt_2), (previous_1, previous_2), frame, transaction)

    def _is_kept_up(self) -> bool:
        """Returns whether a connector holds the lock."""
        with self._guard:
            try:
                fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            fcntl.flock(self._file, fcntl.LOCK_UN)
            return False


_watched: dict[tuple[Path, int, int], _Watched] = {}
_watched_guard = threading.Lock()


def wait_shipped(database: str | os.PathLike[str], timeout_s: float = 10.0) -> int:
    """Waits until everything that is committed now is in the log. Returns the number of the last transaction there.

    Call it after a commit, in a process that has the database open. Raises NotShippedError after the timeout; the
    transaction is committed in the database all the same.
    """
    path = Path(os.fspath(database)).absolute()
    deadline, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    state: WalState | None = None
    while True:
        watched = _watch(path)
        progress = None if watched is None else watched.progress()
        if watched is not None and (state is None or (progress is not None and not progress.knows(state))):
            with suppress(UnsteadyIndexError):
                state = watched.index.look()
        if state is not None and progress is not None and progress.has(state):
            return progress.transaction
        if time.monotonic() > deadline:
            raise NotShippedError(
                f"{path}: the committed transactions are not in the log after {timeout_s:g} s. Check that "
                f"`ottla connect sqlite {path}` and its brokers are running"
            )
        time.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)


def _watch(path: Path) -> _Watched | None:
    try:
        shared, own = os.stat(f"{path}-shm"), os.stat(f"{path}{SUFFIX}")
        key = (path, shared.st_ino, own.st_ino)
        with _watched_guard:
            if key not in _watched:
                if own.st_size < _PROGRESS.size or shared.st_size < LOOK_BYTES:
                    return None  # just created
                _watched[key] = _Watched(path)
            return _watched[key]
    except FileNotFoundError:
        return None
