"""The findings of `ottla doctor`: one row for each thing checked."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Status(StrEnum):
    """How serious a finding is."""

    ok = "ok"
    warn = "warn"
    """Works, but could work better."""
    bad = "bad"
    """Will harm data, latency or the number of clients."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of `ottla doctor`."""

    name: str
    status: Status
    value: str
    advice: str = ""
    """What to do, and why. A row that is ok may also have advice for fine-tuning."""


def ok(name: str, value: str, advice: str = "") -> Check:
    """Returns a check that passed."""
    return Check(name, Status.ok, value, advice)


def warn(name: str, value: str, advice: str) -> Check:
    """Returns a check that calls for attention but does not fail the command."""
    return Check(name, Status.warn, value, advice)


def bad(name: str, value: str, advice: str) -> Check:
    """Returns a check that failed; `advice` says what to do."""
    return Check(name, Status.bad, value, advice)


def read_text(path: str | Path) -> str | None:
    """Returns the text of a file in /proc or /sys, or None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_number(path: str | Path) -> int | None:
    """Returns the number in a file in /proc or /sys, or None if there is none."""
    text = read_text(path)
    try:
        return None if text is None else int(text.split()[0])
    except (ValueError, IndexError):
        return None


def chosen_option(text: str) -> str:
    """Returns the option that the kernel marks as chosen, such as `madvise` in `always [madvise] never`."""
    start, end = text.find("["), text.find("]")
    return text[start + 1 : end] if 0 <= start < end else text
