"""Displays a campaign: a progress line, each failure as it occurs, and tables at the end."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
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
    """The results of one kind so far."""

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
    first_reached: dict[str, int] = field(default_factory=dict)
    """After how many seeds each branch was taken first."""
    failures: list[tuple[int, Failed]] = field(default_factory=list)
    slowest: list[tuple[float, int]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        self.virtual_s += outcome.virtual_s
        self.worked_s += outcome.real_s
        self.acknowledged += outcome.acknowledged
        self.leader_changes += outcome.leader_changes
        self.faults += outcome.faults
        reached = [name for name, count in outcome.reached.items() if count]
        self.reached.update(reached)
        for name in reached:
            self.first_reached.setdefault(name, self.done)
        if outcome.failed is not None:
            self.failures.append((outcome.seed, outcome.failed))
        self.slowest = sorted([*self.slowest, (outcome.real_s, outcome.seed)], reverse=True)[:SLOWEST_SHOWN]

    @property
    def hours_a_minute(self) -> float:
        """Virtual hours per minute that one worker spent on seeds, without its start."""
        return (self.virtual_s / 3600) / (max(self.worked_s, 1e-9) / 60)

    @property
    def seeds_a_minute(self) -> float:
        """Seeds per minute of one worker."""
        return self.done / (max(self.worked_s, 1e-9) / 60)


class Tallies:
    """The results of all kinds of a campaign so far."""

    def __init__(self, totals: dict[Kind, int]) -> None:
        self.by_kind = {kind: Tally(total, kind) for kind, total in totals.items()}
        self._begun_s = monotonic()

    def add(self, outcome: Outcome) -> None:
        self.by_kind[outcome.kind].add(outcome)

    @property
    def total(self) -> int:
        return sum(tally.total for tally in self.by_kind.values())

    @property
    def done(self) -> int:
        return sum(tally.done for tally in self.by_kind.values())

    @property
    def failure_count(self) -> int:
        return sum(len(tally.failures) for tally in self.by_kind.values())

    @property
    def elapsed_s(self) -> float:
        return max(monotonic() - self._begun_s, 1e-9)

    @property
    def hours_a_minute(self) -> float:
        """Virtual hours per minute of real time."""
        virtual_s = sum(tally.virtual_s for tally in self.by_kind.values())
        return (virtual_s / 3600) / (self.elapsed_s / 60)

    @property
    def left_s(self) -> float | None:
        return self.elapsed_s / self.done * (self.total - self.done) if self.done else None

    def unreached(self, within: int) -> list[str] | None:
        """Returns the branches that no kind has reached within so many of its seeds. None if a kind has not run that
        many yet, so that nothing can be said."""
        if any(tally.done < within for tally in self.by_kind.values()):
            return None
        reached = {
            name for tally in self.by_kind.values() for name, after in tally.first_reached.items() if after <= within
        }
        return sorted(name for name in reach.BRANCHES if name not in reached)


def replay_command(seed: int, kind: Kind = Kind.CLUSTER) -> str:
    which = f" {kind.flag}" if kind.flag else ""
    return f".venv/bin/python -m tests.simulation.campaign{which} --replay {seed}"


class Display:
    def __init__(self, tallies: Tallies) -> None:
        self._tallies = tallies
        self._is_terminal = sys.stdout.isatty()
        self._shown_s = monotonic()
        self._width = 0

    def progress(self, *, now: bool = False) -> None:
        if self._is_terminal:
            line = progress_line(self._tallies)
            print(f"\r{line:<{self._width}}", end="", flush=True)
            self._width = len(line)
        elif now or monotonic() - self._shown_s >= LINE_EVERY_S:
            self._shown_s = monotonic()
            print(progress_line(self._tallies), flush=True)

    def failure(self, outcome: Outcome) -> None:
        failed = outcome.failed
        assert failed is not None
        self._clear()
        print(f"seed {outcome.seed} of {outcome.kind.value} FAILED, {failed.checker}: {failed.text}")
        for line in failed.details.rstrip().splitlines()[-DETAIL_LINES:]:
            print(f"    {line[:200]}")
        print(f"  again: {replay_command(outcome.seed, outcome.kind)}", flush=True)

    def summary(self) -> None:
        self._clear()
        for tally in self._tallies.by_kind.values():
            print("\n".join(summary_lines(tally)), flush=True)
        print("\n".join(total_lines(self._tallies)), flush=True)
        print("\n".join(reach_lines(self._tallies.by_kind.values())), flush=True)

    def _clear(self) -> None:
        if self._is_terminal and self._width:
            print("\r" + " " * self._width + "\r", end="")
            self._width = 0


def progress_line(tallies: Tallies) -> str:
    left = "?" if tallies.left_s is None else _duration(tallies.left_s)
    acknowledged: Counter[str] = Counter()
    for tally in tallies.by_kind.values():
        acknowledged[tally.kind.noun] += tally.acknowledged
    what = ", ".join(f"{count} {noun}" for noun, count in acknowledged.items())
    return (
        f"{tallies.done}/{tallies.total} seeds, {tallies.failure_count} failed, {tallies.hours_a_minute:.2f} virtual "
        f"hours a minute, {what} acknowledged, {left} left"
    )


def summary_lines(tally: Tally) -> list[str]:
    rows = [
        ("kind", tally.kind.value),
        ("seeds", f"{tally.done} of {tally.total}"),
        ("failed", str(len(tally.failures))),
        ("virtual time", f"{tally.virtual_s / 3600:.2f} h"),
        ("real time", f"{_duration(tally.worked_s)} in all workers"),
        ("rate of a worker", f"{tally.hours_a_minute:.2f} virtual hours and {tally.seeds_a_minute:.0f} seeds a minute"),
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


def total_lines(tallies: Tallies) -> list[str]:
    counts = ", ".join(f"{tally.done} {kind.value}" for kind, tally in tallies.by_kind.items())
    return [
        "",
        f"{tallies.done} seeds ({counts}), {tallies.failure_count} failed",
        f"{_duration(tallies.elapsed_s)}, {tallies.hours_a_minute:.2f} virtual hours a minute",
    ]


def reach_lines(tallies: Iterable[Tally]) -> list[str]:
    """In how many seeds each branch was reached, and of which kinds, the rarest first."""
    found = list(tallies)
    counted = sorted((sum(tally.reached[name] for tally in found), name) for name in reach.BRANCHES)
    lines = ["", "branches reached, by number of seeds"]
    for count, name in counted:
        kinds = ", ".join(f"{tally.kind.value} {tally.reached[name]}" for tally in found if tally.reached[name])
        lines.append(f"{count:7d}  {name:<75} {kinds}".rstrip())
    return lines


def log_line(outcome: Outcome) -> str:
    """Returns the outcome as a line of JSON, for a log of many campaigns."""
    failed = None if outcome.failed is None else f"{outcome.failed.checker}: {outcome.failed.text}"
    reached = [name for name, count in outcome.reached.items() if count]
    line = {"kind": outcome.kind.value, "seed": outcome.seed, "failed": failed, "reached": reached}
    return json.dumps({**line, "virtual_s": round(outcome.virtual_s, 1), "real_s": round(outcome.real_s, 1)})


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
