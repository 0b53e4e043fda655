"""How far a database is in its log, for programs that use it: `wait_shipped` lets a commit wait for the log.

The connector writes its progress into a small file beside the database (NAME-ottla), after the log has acknowledged it,
and has that file locked while it lives: what a dead one has left there counts for nothing.
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
from ottla.connect.sqlite.wal_format import Salts, WalPlace
from ottla.connect.sqlite.wal_index import LOOK_BYTES, UnsteadyIndexError, WalIndex, WalState

SUFFIX = "-ottla"
_MAGIC = b"OSQS"
_PROGRESS = struct.Struct(">4s5IqI")
_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.005
_LOCK_EVERY_S = 0.02
LOCK_PATIENCE_S = 10.0
"""How long a connector waits for the one before it, whose supervisor was killed and which is about to see that."""


class NotShippedError(ConnectorError):
    """The transaction is committed, but not in the log within the time that was given. It may get there later."""


@dataclass(frozen=True, slots=True)
class Progress:
    salts: Salts
    """Of the WAL that is followed."""
    previous: Salts
    """Of the one before it, of which all was shipped."""
    frame: int
    transaction: int

    def knows(self, state: WalState) -> bool:
        """If not, the WAL was begun anew more than once: look again, at what has all that was committed then."""
        return state.salts in (self.salts, self.previous)

    def has(self, state: WalState) -> bool:
        if self.salts == state.salts:
            return self.frame >= state.frames
        # A WAL without frames: it may be begun anew after all of the one before was shipped, and only then.
        return self.previous == state.salts or state.frames == 0


class ProgressFile:
    """Written by the connector for other processes, which look at it at the same time. One connector for a database."""

    def __init__(self, database: Path, patience_s: float = LOCK_PATIENCE_S) -> None:
        self._file = os.open(f"{database}{SUFFIX}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._salts = self._previous = (0, 0)
        if not _lock(self._file, patience_s):
            os.close(self._file)
            raise NeedsHelpError(f"another `ottla connect sqlite` follows {database} already: one is enough")
        self.forget()

    def write(self, place: WalPlace, transaction: int) -> None:
        if place.salts != self._salts:
            self._previous, self._salts = self._salts, place.salts
        body = _PROGRESS.pack(_MAGIC, *self._salts, *self._previous, place.frame, transaction, 0)[:-4]
        os.pwrite(self._file, body + crc32c(body).to_bytes(4, "big"), 0)

    def forget(self) -> None:
        """Nothing is known."""
        self._salts = self._previous = (0, 0)
        os.pwrite(self._file, bytes(_PROGRESS.size), 0)

    def close(self) -> None:
        self.forget()
        os.close(self._file)


def _lock(file: int, patience_s: float) -> bool:
    """Those who wait look for a moment whether it is locked: so more than once."""
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
    """What a process looks at. Kept open for good: closing the -shm file would drop SQLite's locks in this process."""

    def __init__(self, database: Path) -> None:
        self.index = WalIndex(database)
        self._file = os.open(f"{database}{SUFFIX}", os.O_RDONLY | os.O_CLOEXEC)
        self._memory = mmap.mmap(self._file, _PROGRESS.size, prot=mmap.PROT_READ)
        self._guard = threading.Lock()

    def progress(self) -> Progress | None:
        content = self._memory[: _PROGRESS.size]
        if crc32c(content[:-4]) != int.from_bytes(content[-4:], "big"):
            return None
        magic, salt_1, salt_2, previous_1, previous_2, frame, transaction, _ = _PROGRESS.unpack(content)
        if magic != _MAGIC or not self._is_kept_up():
            return None
        return Progress((salt_1, salt_2), (previous_1, previous_2), frame, transaction)

    def _is_kept_up(self) -> bool:
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
    """Returns when all that is committed now is in the log: the number of the last transaction there.

    Call it after a commit, in a process that has the database open. NotShippedError after the timeout: the transaction
    is committed in the database all the same.
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
                f"{path}: what was committed is not in the log after {timeout_s:g} s. Is `ottla connect sqlite {path}` "
                "running, and are its brokers?"
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
                    return None  # just made
                _watched[key] = _Watched(path)
            return _watched[key]
    except FileNotFoundError:
        return None
