"""The results of a run: each configuration on each target with all its repetitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ottla.bench.suite.figures import FIGURES
from ottla.bench.suite.goals import RatioGoal, parse_goal
from ottla.bench.suite.settings import Value
from ottla.bench.suite.statistics import Ratio, Summary, paired_ratio, summary, unpaired_ratio
from ottla.bench.suite.store import Line


@dataclass(slots=True)
class CellResult:
    """One configuration on one target."""

    key: str
    label: str
    target: str
    configuration: dict[str, Value]
    figures: dict[str, dict[int, float]] = field(default_factory=dict)
    """Values by figure and repetition."""
    failed: dict[int, str] = field(default_factory=dict)
    """Why each repetition failed. A repetition that was measured later is not included."""

    @property
    def failures(self) -> list[str]:
        """The reasons of the repetitions that failed."""
        return list(self.failed.values())

    @property
    def repetitions(self) -> int:
        """Returns how many repetitions were measured."""
        return max(map(len, self.figures.values()), default=0)

    def summary(self, figure: str) -> Summary | None:
        """Returns the median and spread of a figure over the repetitions; None if none has it."""
        values = list(self.figures.get(figure, {}).values())
        return summary(values) if values else None


@dataclass(frozen=True, slots=True)
class RatioResult:
    """A ratio with its goal."""

    key: str
    label: str
    figure: str
    ratio: Ratio
    goal: RatioGoal | None


class Results:
    """All results of a run, read from its lines."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.cells: dict[tuple[str, str], CellResult] = {}
        """The cells by configuration and target, in file order."""
        self.starts: dict[str, dict[str, list[float]]] = {}
        """Figures of every start, by target."""
        self.facts: dict[str, dict[str, Any]] = {}
        self.unavailable: dict[tuple[str, str], str] = {}
        """Why a target could not be started, by name and storage."""
        self.matrix: Line = {}
        self.runs: list[Line] = []
        """The commit, machine and time of each run included."""
        self.lines: list[Line] = []
        """The lines of the measured cells."""
        for line in lines:
            self._take(line)
        self._in_order()

    def _take(self, line: Line) -> None:
        if line.get("kind") == "matrix":
            self.matrix = line
        elif line.get("kind") == "start":
            self.facts[line["target"]] = line["facts"]
            self.unavailable.pop((line["target"], line["storage"]), None)
            for name, value in line["figures"].items():
                self.starts.setdefault(line["target"], {}).setdefault(name, []).append(value)
        elif line.get("kind") == "unavailable":
            self.unavailable[line["target"], line["storage"]] = line["reason"]
        elif line.get("kind") == "cell":
            self._take_cell(line)
        if line.get("at") not in [run["at"] for run in self.runs]:
            self.runs.append({name: line.get(name) for name in ("at", "commit", "machine", "kernel", "load_before")})

    def _take_cell(self, line: Line) -> None:
        at = (line["key"], line["target"])
        cell = self.cells.setdefault(at, CellResult(line["key"], line["label"], line["target"], line["configuration"]))
        if "failure" in line:
            cell.failed[line["repetition"]] = line["failure"]
            return
        cell.failed.pop(line["repetition"], None)
        self.lines.append(line)
        for name, value in line["figures"].items():
            cell.figures.setdefault(name, {})[line["repetition"]] = value

    def _in_order(self) -> None:
        keys = [row["key"] for row in self.matrix.get("rows", [])]
        order = {key: at for at, key in enumerate(keys)}
        self.cells = dict(sorted(self.cells.items(), key=lambda item: order.get(item[0][0], len(order))))

    @property
    def targets(self) -> list[str]:
        """The names of the measured targets, in the order of the matrix."""
        named = [target["name"] for target in self.matrix.get("targets", [])]
        return [name for name in named if any(at[1] == name for at in self.cells)] or list(
            dict.fromkeys(at[1] for at in self.cells)
        )

    @property
    def keys(self) -> list[str]:
        """The keys of the measured configurations, in the order of the matrix."""
        return list(dict.fromkeys(at[0] for at in self.cells))

    @property
    def subject(self) -> str:
        """The target that ratios are computed for: the one that the matrix names, or the first."""
        return self.matrix.get("subject") or self.targets[0]

    @property
    def peer(self) -> str:
        """Empty if there is nothing to compare with."""
        others = [name for name in self.targets if name != self.subject]
        return self.matrix.get("peer") or (others[0] if others else "")

    def label(self, key: str) -> str:
        """Returns the label of a configuration, which must have been measured."""
        return next(cell.label for at, cell in self.cells.items() if at[0] == key)

    def goals(self, key: str) -> list[RatioGoal]:
        """Returns the goals of a configuration."""
        texts: list[str] = next((row["goals"] for row in self.matrix.get("rows", []) if row["key"] == key), [])
        return _goals(texts)

    def varied(self) -> list[str]:
        """Returns the settings that differ between cells."""
        configurations = [cell.configuration for cell in self.cells.values()]
        return [name for name in configurations[0] if len({str(each.get(name)) for each in configurations}) > 1]

    def ratio(self, key: str, figure: str) -> Ratio | None:
        """Returns the ratio of the subject to the peer."""
        subject, peer = self.cells.get((key, self.subject)), self.cells.get((key, self.peer))
        if subject is None or peer is None:
            return None
        return paired_ratio(subject.figures.get(figure, {}), peer.figures.get(figure, {}))

    def own(self, key: str, figure: str) -> Ratio | None:
        """Returns the subject's own figure, which is already a share."""
        cell = self.cells.get((key, self.subject))
        found = None if cell is None else cell.summary(figure)
        return None if found is None else Ratio(found.median, found.low, found.high)

    def ratios(self) -> list[RatioResult]:
        """Returns the ratios with goals, or if there are none, the ratios of the main figures."""
        found = []
        for key in self.keys:
            goals = {goal.figure: goal for goal in self.goals(key)}
            for figure in goals or FIGURES:
                if not goals and figure not in RATIOS_SHOWN:
                    continue
                goal = goals.get(figure)
                ratio = self.own(key, figure) if goal is not None and goal.is_own else self.ratio(key, figure)
                if ratio is not None:
                    found.append(RatioResult(key, self.label(key), figure, ratio, goal))
        return found + self._start_ratios()

    def without_ratio(self) -> list[tuple[str, str]]:
        """Returns the labels and the failed targets of rows that lack a ratio because a target failed."""
        found = []
        for key in self.keys:
            cells = [self.cells.get((key, target)) for target in (self.subject, self.peer)]
            failed = [cell.target for cell in cells if cell is not None and cell.failures and not cell.figures]
            if failed:
                found.append((self.label(key), " and ".join(failed)))
        return found

    def _start_ratios(self) -> list[RatioResult]:
        """Returns the ratios of start figures. Starts are few and not paired."""
        goals = {goal.figure: goal for goal in _goals(self.matrix.get("start_goals", []))}
        subject, peer = self.starts.get(self.subject, {}), self.starts.get(self.peer, {})
        found = []
        for figure in subject:
            ratio = unpaired_ratio(subject[figure], peer.get(figure, []))
            if ratio is not None:
                found.append(RatioResult("start", "start", figure, ratio, goals.get(figure)))
        return found


def _goals(texts: list[str]) -> list[RatioGoal]:
    return [goal for text in texts if not isinstance(goal := parse_goal(text), str)]


RATIOS_SHOWN = (
    "records_per_s",
    "p99_us",
    "read_records_per_s",
    "end_to_end_p99_us",
    "brokers_cpu_s_per_gb",
    "broker_memory_mb",
)
