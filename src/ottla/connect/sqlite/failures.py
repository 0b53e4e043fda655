"""Problems with a database, explained for the operator."""

from __future__ import annotations

import os
import shlex
import sqlite3
from pathlib import Path

from ottla.connect.failures import ConnectorError, NeedsHelpError

_MAGIC = b"SQLite format 3\x00"
_VERSIONS_AT = 18
_WAL_VERSION = 2


class SourceChangedError(ConnectorError):
    """The files of the database were replaced, or the WAL changed in a way that was not observed.

    Reopening them determines what is missing.
    """


def check_database(path: Path) -> None:
    """Raises NeedsHelpError unless the file is a database in WAL mode that can be replicated.

    Call it before SQLite opens the file: closing a descriptor drops the locks that this process holds on the file.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        raise NeedsHelpError(f"the file {path} does not exist") from None
    except IsADirectoryError:
        raise NeedsHelpError(f"{path} is a directory; give the database file") from None
    except PermissionError:
        raise NeedsHelpError(f"{path} is not readable; give this user the permission, or run as its owner") from None
    if header and not header.startswith(_MAGIC):
        raise NeedsHelpError(
            f"{path} is not an SQLite database, or it is encrypted. An encrypted database can be followed only "
            "by a program that has its key"
        )
    if not header or header[_VERSIONS_AT] != _WAL_VERSION:
        raise NeedsHelpError(
            f"{path} is not in WAL mode, so it cannot be followed. While no program uses it, run:\n\n    "
            f"sqlite3 {shlex.quote(str(path))} 'PRAGMA journal_mode=WAL'\n"
        )
    if not os.access(path.parent, os.W_OK) or not os.access(path, os.W_OK):
        raise NeedsHelpError(
            f"{path} or its directory is not writable. The database is not changed, but SQLite keeps its locks "
            f"in {path.name}-shm, and this program its progress in {path.name}-ottla; give this user the "
            "permission"
        )


def in_words(path: Path, error: sqlite3.Error) -> ConnectorError:
    """Explains an error of SQLite."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return ConnectorError(
            f"{path} is locked by another program. If this persists, look for a long transaction, or for a "
            "program that uses PRAGMA locking_mode=EXCLUSIVE, with which the database cannot be followed"
        )
    if "not a database" in text or "malformed" in text:
        return NeedsHelpError(
            f"{path} is damaged, or encrypted ({text}). `ottla restore sqlite` creates a new file from the log"
        )
    if "readonly" in text or "unable to open" in text:
        return NeedsHelpError(f"{path} or its directory is not writable ({text}), and SQLite keeps its locks there")
    return ConnectorError(f"{path}: {text}")


def damaged_wal(path: Path, why: str) -> NeedsHelpError:
    """Returns the error for a damaged WAL."""
    quoted = shlex.quote(str(path))
    return NeedsHelpError(
        f"{path}-wal is damaged: {why}. Earlier transactions are in the log. Stop the programs that use the "
        f"database, keep a copy of the files, and check them: sqlite3 {quoted} 'PRAGMA integrity_check'. Then "
        "restart this connector, which takes a new snapshot, or restore the database: ottla restore sqlite"
    )
