"""Stores results: one JSON line for each measurement, durable before the next one begins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ottla.bench.results import Run

RESULTS_FILE = "results.jsonl"
Line = dict[str, Any]


class Store:
    """The results file of a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / RESULTS_FILE

    def append(self, run: Run, line: Line) -> None:
        """Appends a line, which is durable on return. A line that a crash has truncated stays a line of its own."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            if file.seek(0, os.SEEK_END) and not _ends_whole(file.fileno()):
                file.write(b"\n")
            file.write(json.dumps({**asdict(run), **line}, sort_keys=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[Line]:
        """Returns the lines stored so far. Skips a truncated line."""
        return list(read_lines(self.path))

    def set_aside(self) -> Path | None:
        """Renames the results for a fresh start. Nothing is deleted."""
        if not self.path.exists():
            return None
        number = 1
        while (other := self.path.with_name(f"results-{number}.jsonl")).exists():
            number += 1
        return self.path.rename(other)


def _ends_whole(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, 1, size - 1) == b"\n"


def read_lines(path: Path) -> Iterator[Line]:
    """Yields the lines, oldest first. Skips a truncated line."""
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict):
            yield line


def done_cells(lines: list[Line]) -> set[tuple[str, str, int]]:
    """Returns the cells that need not be measured again. Failed cells are retried."""
    return {
        (line["key"], line["target_key"], line["repetition"])
        for line in lines
        if line.get("kind") == "cell" and "failure" not in line
    }
