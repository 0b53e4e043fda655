"""A replicated database, with the locks that keep its WAL from being overwritten before it is read.

When the whole WAL is in the database file and no reader needs it, the next writer restarts it, overwriting its content.
To control this:

- One read transaction, the guard, is always open. While it is open, the WAL is not restarted, and no checkpoint goes
  beyond what the guard saw when it began. The guard follows what has been shipped: the next one is opened before the
  last one is closed.
- When the WAL has grown enough, writers are locked out for a moment. The remaining transactions are shipped, and a
  checkpoint copies the whole WAL to the database file. A guard that begins now does not need the WAL, so the next
  writer restarts it, once: under such a guard no checkpoint copies anything, and without a checkpoint the WAL is not
  restarted again.

Nothing is ever written to the database except by checkpoints, as any program does them.
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
    """An open database."""

    def __init__(self, path: Path, busy_s: float = BUSY_S) -> None:
        """Opens the database. Raises ConnectorError with an explanation."""
        self.path = path = path.absolute()
        self._busy_s = busy_s
        check_database(path)
        self._connections: list[sqlite3.Connection] = []
        self._descriptors = contextlib.ExitStack()
        try:
            self._guard, self._next_guard = self._connect(busy_s), self._connect(busy_s)
            self._writer, self._checkpointer = self._connect(busy_s), self._connect(busy_s)
            _begin_read(self._guard)  # SQLite now creates the -wal and -shm files, or repairs the latter
            # These are closed after the connections; `wal_index` says why.
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
        """The state of the WAL when the guard was last moved: at least what the guard has seen."""
        self.may_begin_anew = True
        """Whether the guard allows a writer to restart the WAL, once."""

    def _connect(self, busy_s: float) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=busy_s, isolation_level=None, check_same_thread=False)
        self._connections.append(connection)
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def close(self) -> None:
        """Closes the connections and with them the locks that keep the WAL."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._descriptors.close()

    # -- state --------------------------------------------------------------------------------------------------------

    def look(self) -> WalState:
        """Returns what is committed now. Takes microseconds."""
        try:
            return self.index.look()
        except UnsteadyIndexError:
            pass
        try:
            # A writer was killed while writing the index. SQLite repairs it when the next transaction begins.
            with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_S)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            return self.index.look()
        except sqlite3.Error as error:
            raise in_words(self.path, error) from error
        except UnsteadyIndexError:
            raise SourceChangedError(f"{self.path}-shm changes too often to be read") from None

    def check_files(self) -> None:
        """Raises SourceChangedError if a file of the database was replaced or removed."""
        descriptors = {"": self.file, "-wal": self.wal.descriptor, "-shm": self.index.descriptor}
        for suffix, descriptor in descriptors.items():
            name = f"{self.path}{suffix}"
            try:
                found = os.stat(name)
            except FileNotFoundError:
                raise SourceChangedError(f"{name} was removed while the database was in use") from None
            if not os.path.samestat(found, os.fstat(descriptor)):
                raise SourceChangedError(f"{name} was replaced by another file")

    def wal_bytes(self) -> int:
        """Returns the size of the -wal file, including frames that are no longer valid."""
        return os.fstat(self.wal.descriptor).st_size

    # -- locks --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writers_kept_out(self, patience_s: float | None = None) -> Iterator[None]:
        """Locks writers out, so that nothing is committed meanwhile. Raises ConnectorError if the lock cannot be
        acquired."""
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
        """Moves the guard to the last commit, which must have been read. Does nothing if the guard is already there."""
        state = self.look()
        if (state.salts, state.frames) == self._guarded or state.frames == 0:
            return
        # The WAL has frames that the old guard has not seen. They are not in the database file, because the old guard
        # limits checkpoints. So the new guard needs the WAL, and nobody restarts it.
        self._replace_guard()
        self.may_begin_anew = False

    def guard_now(self) -> WalState:
        """Moves the guard to the last commit while writers are locked out. The WAL may already be fully
        checkpointed."""
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
        """Checkpoints the whole WAL, so that the next writer restarts it.

        Call it while writers are locked out, after everything was read. Returns False if another program reads an older
        state; try again later.
        """
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
        """Returns all pages as of `state`. It must be guarded, and the image is valid until the guard moves."""
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
