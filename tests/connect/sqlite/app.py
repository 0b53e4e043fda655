"""A program with an open database, in its own process, since SQLite's locks belong to a process."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class App:
    """`app.do(sql, ...)` runs the statements and returns the rows of the last one. Raises RuntimeError on an error."""

    def __init__(self, database: Path, *pragmas: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.do(*(f"PRAGMA {pragma}" for pragma in pragmas))

    def do(self, *statements: str) -> list[list[Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(statements) + "\n")
        self._process.stdin.flush()
        rows, error = json.loads(self._process.stdout.readline())
        if error is not None:
            raise RuntimeError(error)
        assert isinstance(rows, list)
        return rows

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """Closes in order: the last connection to close checkpoints the WAL and removes it."""
        self._process.communicate("")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()


def _serve(database: str) -> None:
    connection = sqlite3.connect(database, timeout=0.2, isolation_level=None)
    for line in sys.stdin:
        rows: list[Any] = []
        error = None
        try:
            for statement in json.loads(line):
                rows = connection.execute(statement).fetchall()
        except sqlite3.Error as failure:
            error = str(failure)
        print(json.dumps([rows, error]), flush=True)
    connection.close()


if __name__ == "__main__":
    _serve(sys.argv[1])
