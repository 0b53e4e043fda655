"""Runs a matrix: measures the missing cells one after another, and stores each before the next begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ottla.bench.processes import WorkFailedError
from ottla.bench.results import Run
from ottla.bench.suite.figures import shown
from ottla.bench.suite.matrix import Matrix, TargetPlan, rows_of
from ottla.bench.suite.measure import Measurement
from ottla.bench.suite.order import Cell, cells_of, estimate_s, target_key
from ottla.bench.suite.rates import with_rate
from ottla.bench.suite.statistics import time_left_s
from ottla.bench.suite.store import Store, done_cells
from ottla.bench.suite.target_pool import DataDirectories, TargetPool

Say = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """What was measured, and what failed."""

    measured: int = 0
    failures: list[str] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    """Why a target was not available, by name."""

    @property
    def is_whole(self) -> bool:
        """True if nothing failed and every target was available."""
        return not self.failures and not self.unavailable


class Runner:
    """Measures the cells of a matrix."""

    def __init__(self, matrix: Matrix, store: Store, places: DataDirectories, run: Run, say: Say) -> None:
        self._matrix = matrix
        self._store = store
        self._places = places
        self._run = run
        self._say = say
        self._outcome = Outcome()
        self._done: list[tuple[float, float]] = []

    def measure_all(self) -> Outcome:
        """Measures the cells that the results file lacks, and stores each one when it is done."""
        cells, left_out = cells_of(self._matrix)
        finished = done_cells(self._store.lines())
        left = [cell for cell in cells if cell.identity not in finished]
        for each in left_out:
            self._say(f"skipped: {each.target}: {each.label}: {each.reason}")
        if len(left) < len(cells):
            self._say(f"{len(cells) - len(left)} of {len(cells)} measurements already exist")
        if not left:
            return self._outcome
        self._store.append(self._run, matrix_line(self._matrix, [asdict(each) for each in left_out]))
        self._say(f"{len(left)} measurements, about {duration_text(self._time_left(left))}")
        with TargetPool(self._matrix, self._places, self._on_start) as stage:
            for at, cell in enumerate(left):
                self._measure(stage, cell, f"[{at + 1}/{len(left)}]", left[at + 1 :])
        return self._outcome

    def _measure(self, stage: TargetPool, cell: Cell, place: str, left: Sequence[Cell]) -> None:
        name, where = cell.target.name, place_name(cell)
        if where in self._outcome.unavailable:
            return
        try:
            target = stage.get(cell.target, str(cell.row.configuration["storage"]))
        except Exception as failure:  # whatever the cause, this target is reported and the others are measured
            reason = failure_text(failure)
            self._outcome.unavailable[where] = reason
            storage = str(cell.row.configuration["storage"])
            self._store.append(self._run, {"kind": "unavailable", "target": name, "storage": storage, "reason": reason})
            self._say(f"{place} {where} cannot be started and is skipped: {reason}")
            return
        begin_s, topic = time.monotonic(), f"bench-{cell.row.key}-{cell.repetition}-{time.time_ns()}"
        try:
            configuration, reached = with_rate(cell.row.configuration, name, self._store.lines())
            measurement = Measurement(
                target, configuration, topic, self._matrix.warm_up_s, lambda: stage.other_pids(target)
            )
            figures = measurement.run()
            if reached:
                figures["share_of_row"] = figures["records_per_s"] / reached
        except Exception as failure:  # whatever the cause, this cell is reported and the others are measured
            stage.drop(target)
            sentence = failure_text(failure)
            self._outcome.failures.append(f"{cell.name}: {sentence}")
            self._keep(cell, time.monotonic() - begin_s, {"failure": sentence})
            self._say(f"{place} {cell.name}: failed: {sentence}")
            return
        seconds = time.monotonic() - begin_s
        self._outcome.measured += 1
        self._done.append((estimate_s(cell, self._matrix.warm_up_s), seconds))
        rounded = {key: round(value, 4) for key, value in figures.items()}
        self._keep(cell, seconds, {"figures": rounded, "configuration": configuration})
        self._say(f"{place} {cell.name}: {figures_text(figures)}; {duration_text(self._time_left(left))} left")

    def _keep(self, cell: Cell, seconds: float, found: dict[str, Any]) -> None:
        line = {
            "kind": "cell",
            "key": cell.row.key,
            "label": cell.row.label,
            "target": cell.target.name,
            "target_key": target_key(cell.target),
            "repetition": cell.repetition,
            "configuration": dict(cell.row.configuration),
            "seconds": round(seconds, 2),
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **found,
        }
        self._store.append(self._run, line)

    def _on_start(self, plan: TargetPlan, storage: str, figures: dict[str, float], facts: dict[str, Any]) -> None:
        line = {"kind": "start", "target": plan.name, "storage": storage, "figures": figures, "facts": facts}
        self._store.append(self._run, line)
        if figures:
            self._say(
                f"{plan.name} is running: {shown('start_s', figures['start_s'])} s to the first acknowledged write"
            )

    def _time_left(self, left: Sequence[Cell]) -> float:
        counted = [cell for cell in left if place_name(cell) not in self._outcome.unavailable]
        return time_left_s(self._done, [estimate_s(cell, self._matrix.warm_up_s) for cell in counted])


def place_name(cell: Cell) -> str:
    """Returns the target and storage of a cell, which decide which brokers run."""
    return f"{cell.target.name} on {cell.row.configuration['storage']}"


def matrix_line(matrix: Matrix, left_out: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the line with what a report needs in addition to the measurements."""
    return {
        "kind": "matrix",
        "name": matrix.name,
        "about": matrix.about,
        "subject": matrix.subject,
        "peer": matrix.peer,
        "start_goals": [goal.text for goal in matrix.start_goals],
        "repetitions": matrix.repetitions,
        "warm_up_s": matrix.warm_up_s,
        "targets": [asdict(target) for target in matrix.targets],
        "rows": [
            {"key": row.key, "label": row.label, "goals": [goal.text for goal in row.goals]} for row in rows_of(matrix)
        ],
        "left_out": left_out,
    }


def failure_text(failure: Exception) -> str:
    """Returns one line. For a failure in a worker, it is the exception raised there."""
    text = str(failure).strip() or type(failure).__name__
    return text.splitlines()[-1] if isinstance(failure, WorkFailedError) else text.splitlines()[0]


def figures_text(figures: dict[str, float]) -> str:
    """Returns the main figures of a measurement in one line."""
    names = {"records_per_s": "records/s", "mb_per_s": "MB/s", "p99_us": "ms p99", "read_mb_per_s": "MB/s read",
             "end_to_end_p99_us": "ms p99 end to end"}  # fmt: skip
    return ", ".join(f"{shown(name, figures[name])} {unit}" for name, unit in names.items() if name in figures)


def duration_text(seconds: float) -> str:
    """Returns a duration for people, in seconds, minutes or hours."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def default_places(results: Path, data: Path | None, ram_disk: Path) -> DataDirectories:
    """Returns the directories for data: that of `data`, or one beside the results, and the RAM disk."""
    return DataDirectories(disk=data or results / "data", ram_disk=ram_disk)
