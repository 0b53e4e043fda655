"""A program that uses the database and may die: python -m tests.connect.sqlite.writer DB RECORDS SEED UNTIL"""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.connect.sqlite.content import Records, content_hash, last_number

ROWS_MAX = 400
PAUSE_S = 0.03
CHECKPOINTS = ("PASSIVE", "FULL", "RESTART", "TRUNCATE")


def create(path: Path, page_bytes: int, auto_vacuum: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size={page_bytes}")
    connection.execute(f"PRAGMA auto_vacuum={auto_vacuum}")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE ledger (n INTEGER)")
    connection.execute("INSERT INTO ledger VALUES (0)")
    connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, data BLOB)")
    connection.close()


class Writer:
    def __init__(self, path: Path, records: Records, seed: int) -> None:
        self._path = path
        self._records = records
        self._random = random.Random(seed)
        self._connection = self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        connection.execute("PRAGMA synchronous=OFF")  # processes die here, not machines
        connection.execute(f"PRAGMA wal_autocheckpoint={self._random.choice((0, 0, 20, 1000))}")
        connection.execute(f"PRAGMA cache_size={self._random.choice((5, 2000))}")  # few: pages spill before the commit
        return connection

    def run(self, until: int) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.transaction, 80),
            (self.give_up, 6),
            (self.checkpoint, self._random.choice((0, 8))),
            (self.vacuum, 2),
            (self.leave_wal_mode, 2),
            (self.reconnect, 2),
        ]
        choices, weights = [step for step, _ in steps], [weight for _, weight in steps]
        while last_number(self._connection) < until:
            step = self._random.choices(choices, weights)[0]
            time.sleep(self._random.uniform(0, PAUSE_S))
            try:
                step()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def transaction(self) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        self._change()
        if self._random.random() < 0.2:
            connection.execute("SAVEPOINT s")
            self._change()
            if self._random.random() < 0.5:
                connection.execute("ROLLBACK TO s")
            connection.execute("RELEASE s")
        connection.execute("UPDATE ledger SET n = n + 1")
        self._records.add(last_number(connection), content_hash(connection))
        connection.execute("COMMIT")

    def give_up(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for _ in range(self._random.randrange(1, 10)):
            self._change()
        self._connection.execute("ROLLBACK")

    def _change(self) -> None:
        choose, connection = self._random, self._connection
        kind = choose.random()
        (count,) = connection.execute("SELECT count(*) FROM items").fetchone()
        if kind < 0.02:
            connection.execute("INSERT INTO items (name, data) VALUES ('big', ?)", [choose.randbytes(1 << 20)])
        elif kind < 0.06:
            connection.execute(f"CREATE TABLE IF NOT EXISTS extra_{choose.randrange(4)} (a, b)")
        elif kind < 0.09:
            connection.execute(f"DROP TABLE IF EXISTS extra_{choose.randrange(4)}")
        elif kind < 0.12:
            connection.execute("CREATE INDEX IF NOT EXISTS by_name ON items (name)")
        elif kind < 0.14:
            connection.execute("DROP INDEX IF EXISTS by_name")
        elif kind < 0.30 or count > ROWS_MAX:
            connection.execute("DELETE FROM items WHERE name = 'big' OR id % 7 = ?", [choose.randrange(7)])
        elif kind < 0.55:
            value = choose.randbytes(choose.randrange(3000))
            connection.execute("UPDATE items SET data = ? WHERE id % 11 = ?", [value, choose.randrange(11)])
        else:
            rows = [(f"name {choose.random()}", choose.randbytes(choose.randrange(2000))) for _ in range(10)]
            connection.executemany("INSERT INTO items (name, data) VALUES (?, ?)", rows)

    def checkpoint(self) -> None:
        self._connection.execute("PRAGMA busy_timeout=20")
        mode = self._random.choice(CHECKPOINTS)
        self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        self._connection.execute("PRAGMA busy_timeout=30000")

    def vacuum(self) -> None:
        self._connection.execute(self._random.choice(("VACUUM", "PRAGMA incremental_vacuum(5)"))).fetchall()

    def leave_wal_mode(self) -> None:
        """Works only while nobody follows and nobody else writes."""
        self._connection.execute("PRAGMA busy_timeout=20")
        try:
            self._connection.execute("PRAGMA journal_mode=DELETE").fetchall()
            self._connection.execute("PRAGMA busy_timeout=30000")
            for _ in range(self._random.randrange(3)):
                self.transaction()
        finally:
            self._connection.execute("PRAGMA busy_timeout=30000")
            self._connection.execute("PRAGMA journal_mode=WAL").fetchall()

    def reconnect(self) -> None:
        self._connection.close()
        self._connection = self._connect()


if __name__ == "__main__":
    path, records, seed, until = sys.argv[1:]
    Writer(Path(path), Records(Path(records)), int(seed)).run(int(until))
