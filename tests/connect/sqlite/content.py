"""The content of a database as a hash, and the number of its last transaction, which writers store in a table."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path


def content_hash(connection: sqlite3.Connection) -> str:
    """Returns a hash of the schema and all rows. It is the same before and after a VACUUM."""
    digest = hashlib.sha256()
    tables = []
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name"):
        digest.update(repr((kind, name, sql)).encode())
        if kind == "table":
            tables.append(name)
    for table in tables:
        for row in connection.execute(f'SELECT rowid, * FROM "{table}" ORDER BY rowid'):
            digest.update(repr(row).encode())
    return digest.hexdigest()


def last_number(connection: sqlite3.Connection) -> int:
    (number,) = connection.execute("SELECT n FROM ledger").fetchone()
    assert isinstance(number, int)
    return number


def read_only(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """Opens an unused file read-only without leaving other files."""
    return contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True))


class Records:
    """The content after each transaction, recorded as a line before its commit. The last line of a number counts, since
    a number is reused if its writer died before the commit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, number: int, content: str) -> None:
        with open(self.path, "a") as file:
            file.write(f"{number} {content}\n")

    def read(self) -> dict[int, str]:
        lines = (line.split() for line in self.path.read_text().splitlines())
        return {int(fields[0]): fields[1] for fields in lines if len(fields) == 2}
