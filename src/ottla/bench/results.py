"""A measured row, its goal, and the file of rows: JSON lines with the commit and the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS_FILE = "broker.jsonl"


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, shown beside the figure. A benchmark never fails because of it."""

    what: str
    value: float
    bound: float
    is_upper: bool = False

    @property
    def met(self) -> bool:
        """True if the value is on the right side of the bound."""
        return self.value < self.bound if self.is_upper else self.value >= self.bound

    @property
    def text(self) -> str:
        """The value, the bound and whether it is met, as a table shows it."""
        sign = "<" if self.is_upper else ">="
        return f"{self.value:.3g} {self.what}, goal {sign} {self.bound:g}: {'met' if self.met else 'not met'}"


@dataclass(slots=True)
class Row:
    """One row of a table. The names of `figures` end with units: `mb_per_s`, `p99_us`, `share_of_floor`."""

    group: str
    """The table of the row: produce, fetch, client or single."""
    case: str
    subject: str
    """A durability class, or `floor`."""
    figures: dict[str, float]
    goal: Goal | None = None
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The group, case and subject in one line."""
        return " ".join(part for part in (self.group, self.case, self.subject) if part)


@dataclass(frozen=True, slots=True)
class Run:
    """When and where rows were measured."""

    at: str
    commit: str
    machine: str
    kernel: str
    python: str
    options: str = ""
    load_before: float = 0.0
    """The machine's load average; figures of a busy machine say little."""


def this_run(options: str = "") -> Run:
    """Describes the run of this process."""
    return Run(
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        commit=commit(),
        machine=f"{_processor()}, {os.cpu_count()} cores, {_memory_gb():.0f} GB",
        kernel=platform.release(),
        python=platform.python_version(),
        options=options,
        load_before=round(os.getloadavg()[0], 2),
    )


def commit() -> str:
    """Returns the commit of the measured code, with a mark if files have changed since; empty outside of git."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def append_rows(directory: Path, run: Run, rows: Iterable[Row]) -> Path:
    """Appends rows to the file of results."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / RESULTS_FILE
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({**asdict(run), **_as_json(row)}, sort_keys=True) + "\n")
    return path


def _as_json(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"name": row.name, "group": row.group, "case": row.case, "subject": row.subject}
    found["figures"] = {name: round(value, 4) for name, value in row.figures.items()}
    if row.goal is not None:
        found["goal"] = {"text": row.goal.text, "met": row.goal.met, "value": row.goal.value}
    if row.notes:
        found["notes"] = row.notes
    return found


def read_history(directory: Path) -> list[dict[str, Any]]:
    """Returns every row of every run, oldest first. Skips a line that a crash has truncated."""
    path = directory / RESULTS_FILE
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found
