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
        raise NeedsHelpError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise NeedsHelpError(f"{path} is a directory; name the file of the database") from None
    except PermissionError:
        raise NeedsHelpError(
            f"{path} may not be read: give this user the right, or run as the one who owns it"
        ) from None
    if header and not header.startswith(_MAGIC):
        raise NeedsHelpError(
            f"{path} is not an SQLite database, or it is encrypted. An encrypted one can be followed only by a program "
            "that has its key"
        )
    if not header or header[_VERSIONS_AT] != _WAL_VERSION:
        raise NeedsHelpError(
            f"{path} is not in WAL mode, and there is nothing to follow. Type, while nobody uses it:\n\n"
            f"    sqlite3 {shlex.quote(str(path))} 'PRAGMA journal_mode=WAL'\n"
        )
    if not os.access(path.parent, os.W_OK) or not os.access(path, os.W_OK):
        raise NeedsHelpError(
            f"{path} or its directory may not be written. Nothing in the database is changed, but SQLite keeps its "
            f"locks in {path.name}-shm, and this program its progress in {path.name}-ottla: give this user the right"
        )


def in_words(path: Path, error: sqlite3.Error) -> ConnectorError:
    """Explains an error of SQLite."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return ConnectorError(
            f"{path} is locked by another program. If that goes on: is one in a long transaction, or does it use "
            "PRAGMA locking_mode=EXCLUSIVE? Then it is alone with the database, and nobody can follow it"
        )
    if "not a database" in text or "malformed" in text:
        return NeedsHelpError(
            f"{path} is damaged, or encrypted ({text}). `ottla restore sqlite` makes a new file of what the log has"
        )
    if "readonly" in text or "unable to open" in text:
        return NeedsHelpError(f"{path} or its directory may not be written ({text}), and SQLite keeps its locks there")
    return ConnectorError(f"{path}: {text}")


def damaged_wal(path: Path, why: str) -> NeedsHelpError:
    """Returns the error for a damaged WAL."""
    quoted = shlex.quote(str(path))
    return NeedsHelpError(
        f"{path}-wal is damaged: {why}. What was committed before is in the log. Stop the programs that use the "
        f"database, keep a copy of the files, and see what SQLite makes of them: "
        f"sqlite3 {quoted} 'PRAGMA integrity_check'. Then start this again: it begins with a new snapshot. "
        "Or go back: ottla restore sqlite"
    )
