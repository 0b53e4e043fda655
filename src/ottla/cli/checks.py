"""What `ottla doctor` finds: one row for each thing it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Status(StrEnum):
    ok = "ok"
    warn = "warn"
    """Works, and could work better."""
    bad = "bad"
    """Will hurt: data, latency or the number of clients."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: Status
    value: str
    advice: str = ""
    """What to do and why. A row that is ok may have some too, for those who want the last bit."""


def ok(name: str, value: str, advice: str = "") -> Check:
    return Check(name, Status.ok, value, advice)


def warn(name: str, value: str, advice: str) -> Check:
    return Check(name, Status.warn, value, advice)


def bad(name: str, value: str, advice: str) -> Check:
    return Check(name, Status.bad, value, advice)


def read_text(path: str | Path) -> str | None:
    """A file of the kernel's, or None where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_number(path: str | Path) -> int | None:
    text = read_text(path)
    try:
        return None if text is None else int(text.split()[0])
    except (ValueError, IndexError):
        return None


def chosen_option(text: str) -> str:
    """The kernel marks the choice: `always [madvise] never`."""
    start, end = text.find("["), text.find("]")
    return text[start + 1 : end] if 0 <= start < end else text
