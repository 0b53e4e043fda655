"""Retention of the changes that watches can still read: the newest ones, up to a number and a size."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

_SIZES = """
SELECT revision, sum(length(key) + coalesce(length(value), 0)) FROM changes GROUP BY revision ORDER BY revision
"""


@dataclass(frozen=True, slots=True)
class History:
    """The limits of the history."""

    revisions_max: int = 10_000
    bytes_max: int = 16 * 1024 * 1024

    def prune(self, connection: sqlite3.Connection, revision: int, added_bytes: int) -> None:
        """Prunes the history inside the transaction that added changes. Past a limit it drops the older half, so it is
        rarely needed."""
        connection.execute("UPDATE store SET value = value + ? WHERE name = 'history_bytes'", [added_bytes])
        numbers = dict(connection.execute("SELECT name, value FROM store"))
        start, kept_bytes = numbers["history_start"], numbers["history_bytes"]
        if revision - start <= self.revisions_max and kept_bytes <= self.bytes_max:
            return
        for oldest, size in connection.execute(_SIZES).fetchall():
            if revision - start <= self.revisions_max // 2 and kept_bytes <= self.bytes_max // 2:
                break
            start, kept_bytes = oldest, kept_bytes - size
        connection.execute("DELETE FROM changes WHERE revision <= ?", [start])
        connection.execute("UPDATE store SET value = ? WHERE name = 'history_start'", [start])
        connection.execute("UPDATE store SET value = ? WHERE name = 'history_bytes'", [kept_bytes])
