"""Displays a campaign: a progress line, each failure as it occurs, and a table at the end."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic

from ottla import reach
from tests.simulation.campaign.outcomes import Failed, Kind, Outcome

SLOWEST_SHOWN = 5
LINE_EVERY_S = 15.0
"""Interval of progress lines if the output is not a terminal."""
DETAIL_LINES = 12


@dataclass(slots=True)
class Tally:
    """The results so far."""

    total: int
    kind: Kind = Kind.CLUSTER
    done: int = 0
    virtual_s: float = 0.0
    worked_s: float = 0.0
    acknowledged: int = 0
    leader_changes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    """In how many seeds each branch was taken."""
    failures: list[tuple[int, Failed]] = field(default_factory=list)
    slowest: list[tuple[float, int]] = field(default_factory=list)
    begun_s: float = field(default_factory=monotonic)

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        self.virtual_s += outcome.virtual_s
        self.worked_s += outcome.real_s
        self.acknowledged += outcome.acknowledged
        self.leader_changes += outcome.leader_changes
        self.faults += outcome.faults
        self.reached.update(name for name, count in outcome.reached.items() if count)
        if outcome.failed is not None:
            self.failures.append((outcome.seed, outcome.failed))
        self.slowest = sorted([*self.slowest, (outcome.real_s, outcome.seed)], reverse=True)[:SLOWEST_SHOWN]

    @property
    def elapsed_s(self) -> float:
        return max(monotonic() - self.begun_s, 1e-9)

    @property
    def hours_a_minute(self) -> float:
        """Virtual hours per minute of real time."""
        return (self.virtual_s / 3600) / (self.elapsed_s / 60)

    @property
    def left_s(self) -> float | None:
        return self.elapsed_s / self.done * (self.total - self.done) if self.done else None


def replay_command(seed: int, kind: Kind = Kind.CLUSTER) -> str:
    which = f" {kind.flag}" if kind.flag else ""
    return f".venv/bin/python -m tests.simulation.campaign{which} --replay {seed}"


class Display:
    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._is_terminal = sys.stdout.isatty()
        self._shown_s = monotonic()
        self._width = 0

    def progress(self, *, now: bool = False) -> None:
        if self._is_terminal:
            line = progress_line(self._tally)
            print(f"\r{line:<{self._width}}", end="", flush=True)
            self._width = len(line)
        elif now or monotonic() - self._shown_s >= LINE_EVERY_S:
            self._shown_s = monotonic()
            print(progress_line(self._tally), flush=True)

    def failure(self, seed: int, failed: Failed) -> None:
        self._clear()
        print(f"seed {seed} FAILED, {failed.checker}: {failed.text}")
        for line in failed.details.rstrip().splitlines()[-DETAIL_LINES:]:
            print(f"    {line[:200]}")
        print(f"  again: {replay_command(seed, self._tally.kind)}", flush=True)

    def summary(self) -> None:
        self._clear()
        print("\n".join(summary_lines(self._tally)), flush=True)

    def _clear(self) -> None:
        if self._is_terminal and self._width:
            print("\r" + " " * self._width + "\r", end="")
            self._width = 0


def progress_line(tally: Tally) -> str:
    left = "?" if tally.left_s is None else _duration(tally.left_s)
    what = tally.kind.noun
    return (
        f"{tally.done}/{tally.total} seeds, {len(tally.failures)} failed, {tally.hours_a_minute:.2f} virtual hours a "
        f"minute, {tally.acknowledged} {what} acknowledged, {left} left"
    )


def summary_lines(tally: Tally) -> list[str]:
    rows = [
        ("seeds", f"{tally.done} of {tally.total}"),
        ("failed", str(len(tally.failures))),
        ("virtual time", f"{tally.virtual_s / 3600:.2f} h"),
        ("real time", f"{_duration(tally.elapsed_s)}, {_duration(tally.worked_s)} in all workers"),
        ("rate", f"{tally.hours_a_minute:.2f} virtual hours a minute"),
        ("acknowledged", f"{tally.acknowledged} {tally.kind.noun}"),
        ("leader changes", str(tally.leader_changes)),
        ("faults", str(tally.faults.total())),
        *((f"  {kind}", str(count)) for kind, count in sorted(tally.faults.items())),
        ("slowest seeds", ", ".join(f"{seed} ({real_s:.1f} s)" for real_s, seed in tally.slowest)),
    ]
    width = max(len(name) for name, _ in rows)
    lines = ["", *(f"{name:<{width}}  {value}" for name, value in rows)]
    for seed, failed in sorted(tally.failures, key=lambda each: each[0]):
        lines.append(f"seed {seed}: {failed.checker}: {failed.text[:150]}")
        lines.append(f"  again: {replay_command(seed, tally.kind)}")
    return lines


def reach_lines(tally: Tally) -> list[str]:
    """In how many seeds each branch was reached, the rarest first."""
    counted = sorted((tally.reached[name], name) for name in reach.BRANCHES)
    return ["", "branches reached, by number of seeds", *(f"{count:7d}  {name}" for count, name in counted)]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
