"""A database that is followed: the locks by which nothing in its WAL is overwritten before it was read.

Writers begin the WAL anew, over what is there, when all of it is in the database file and no reader needs it. So:

* There is always a read transaction here, the guard. While it is open, the WAL is not begun anew, and no checkpoint
  goes further than what the guard had seen when it began. It moves on behind what was shipped: the next one is opened
  before the last one is closed.
* When the WAL has grown enough, writers are kept out for a moment; what is left is shipped, and a checkpoint puts all
  of it into the database file. A guard that begins now needs nothing of the WAL. So the next writer begins it anew,
  once: under such a guard no checkpoint puts anything into the file, and without one the WAL is not begun anew again.

Nothing is ever written to the database but what checkpoints of any program write.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ottla.connect.sqlite.failures import SourceChangedError, check_database, damaged_wal, in_words
from ottla.connect.sqlite.image import Image
from ottla.connect.sqlite.wal_file import WalFile
from ottla.connect.sqlite.wal_format import DamagedWalError, Salts
from ottla.connect.sqlite.wal_index import UnsteadyIndexError, WalIndex, WalState

BUSY_S = 10.0


class Source:
    def __init__(self, path: Path, busy_s: float = BUSY_S) -> None:
        """ConnectorError, in words."""
        self.path = path = path.absolute()
        self._busy_s = busy_s
        check_database(path)
        self._connections: list[sqlite3.Connection] = []
        self._descriptors = contextlib.ExitStack()
        try:
            self._guard, self._next_guard = self._connect(busy_s), self._connect(busy_s)
            self._writer, self._checkpointer = self._connect(busy_s), self._connect(busy_s)
            _begin_read(self._guard)  # SQLite makes the -wal and the -shm file now, or mends the latter
            # These are closed after the connections: see wal_index.
            self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._descriptors.callback(os.close, self.file)
            self.index = WalIndex(path)
            self._descriptors.callback(self.index.close)
            self.wal = WalFile(path)
            self._descriptors.callback(self.wal.close)
        except sqlite3.Error as error:
            self.close()
            raise in_words(path, error) from error
        except OSError as error:
            self.close()
            raise SourceChangedError(f"{error.filename}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise
        self._guarded: tuple[Salts, int] = ((0, 0), -1)
        """At least as much as the guard has seen."""
        self.may_begin_anew = True
        """Whether the guard lets a writer begin the WAL anew, once."""

    def _connect(self, busy_s: float) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=busy_s, isolation_level=None, check_same_thread=False)
        self._connections.append(connection)
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._descriptors.close()

    # -- what there is ------------------------------------------------------------------------------------------------

    def look(self) -> WalState:
        """What is committed now. Costs microseconds."""
        try:
            return self.index.look()
        except UnsteadyIndexError:
            pass
        try:
            # A writer was killed while it wrote the index. SQLite mends it when the next transaction begins.
            with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_S)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            return self.index.look()
        except sqlite3.Error as error:
            raise in_words(self.path, error) from error
        except UnsteadyIndexError:
            raise SourceChangedError(f"{self.path}-shm is being written all the time") from None

    def check_files(self) -> None:
        """SourceChangedError if somebody has put other files in their place, or removed them."""
        descriptors = {"": self.file, "-wal": self.wal.descriptor, "-shm": self.index.descriptor}
        for suffix, descriptor in descriptors.items():
            name = f"{self.path}{suffix}"
            try:
                found = os.stat(name)
            except FileNotFoundError:
                raise SourceChangedError(f"{name} was removed while the database was in use") from None
            if not os.path.samestat(found, os.fstat(descriptor)):
                raise SourceChangedError(f"{name} is another file now than the one that was opened")

    def wal_bytes(self) -> int:
        return os.fstat(self.wal.descriptor).st_size

    # -- locks --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writers_kept_out(self, patience_s: float | None = None) -> Iterator[None]:
        """Nothing is committed meanwhile. ConnectorError if another program writes all the time."""
        patience_s = self._busy_s if patience_s is None else patience_s
        try:
            self._writer.execute(f"PRAGMA busy_timeout={int(patience_s * 1000)}")
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise in_words(self.path, error) from error
        try:
            yield
        finally:
            self._writer.execute("ROLLBACK")

    def move_guard(self) -> None:
        """Behind all that was committed, which must have been read. Does nothing if the guard is there already."""
        state = self.look()
        if (state.salts, state.frames) == self._guarded or state.frames == 0:
            return
        # More than the old guard has seen is in the WAL, and not in the file, since the old guard is there. So the
        # new one needs the WAL, and nobody begins it anew.
        self._replace_guard()
        self.may_begin_anew = False

    def guard_now(self) -> WalState:
        """A guard of what is committed now; call it while writers are kept out. The WAL may be used up already."""
        self._replace_guard()
        state = self.look()
        self.may_begin_anew = state.is_used_up
        return state

    def _replace_guard(self) -> None:
        try:
            _begin_read(self._next_guard)
            _end_read(self._guard)
        except sqlite3.Error as error:
            raise in_words(self.path, error) from error
        self._guard, self._next_guard = self._next_guard, self._guard
        state = self.look()
        self._guarded = (state.salts, state.frames)

    def use_up_wal(self) -> bool:
        """Puts all of the WAL into the file, so that the next writer begins it anew. Call it while writers are kept
        out, after everything was read. False if another program reads something older: then later."""
        self.move_guard()
        try:
            self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            raise in_words(self.path, error) from error
        if not self.look().is_used_up:
            return False
        self.guard_now()
        return True

    def image(self, state: WalState) -> Image:
        """All pages as of `state`, which is guarded: it stays the same while the guard stays."""
        try:
            return Image.of(self.file, self.wal, state)
        except DamagedWalError as damage:
            raise damaged_wal(self.path, str(damage)) from damage


def _begin_read(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


def _end_read(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
