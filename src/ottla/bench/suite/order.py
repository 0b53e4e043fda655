"""The order in which cells are measured, and the cells that are skipped. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ottla.bench.suite.matrix import Matrix, Row, TargetPlan, rows_of
from ottla.bench.suite.settings import count, number
from ottla.bench.suite.target_support import problem_on

AROUND_S = 2.5
"""The overhead of one measurement: processes, topics and checks."""
ASSUMED_PER_S = 50_000


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement of one configuration on one target."""

    row: Row
    target: TargetPlan
    repetition: int

    @property
    def identity(self) -> tuple[str, str, int]:
        """Equal for the same measurement in another run of the same file."""
        return self.row.key, target_key(self.target), self.repetition

    @property
    def name(self) -> str:
        """The target, the label and the repetition, counted from 1."""
        return f"{self.target.name}: {self.row.label} #{self.repetition + 1}"


@dataclass(frozen=True, slots=True)
class SkippedCell:
    """A configuration that a target does not support."""

    label: str
    key: str
    target: str
    reason: str


def target_key(target: TargetPlan) -> str:
    """Identifies a target by its name and a hash of its plan, so that a changed plan is another target."""
    plan = asdict(target)
    return target.name + "-" + hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:8]


def cells_of(matrix: Matrix) -> tuple[list[Cell], list[SkippedCell]]:
    """Returns the cells to measure and those left out. The cells are interleaved.

    Each repetition measures everything once, and targets take turns, so that noise affects all of them. Storages follow
    one another, because brokers are restarted for each; with `alone`, targets follow one another too.
    """
    rows = rows_of(matrix)
    problems = [(row, target, problem_on(target, row.configuration)) for row in rows for target in matrix.targets]
    left_out = [SkippedCell(row.label, row.key, target.name, why) for row, target, why in problems if why is not None]
    possible = [(row, target) for row, target, why in problems if why is None]
    storages = _distinct(str(row.configuration["storage"]) for row, _ in possible)
    cells = []
    for repetition in range(matrix.repetitions):
        for storage in storages:
            turn = [pair for pair in possible if pair[0].configuration["storage"] == storage]
            if matrix.alone:
                turn.sort(key=lambda pair: matrix.targets.index(pair[1]))
            cells += [Cell(row, target, repetition) for row, target in turn]
    return cells, left_out


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def estimate_s(cell: Cell, warm_up_s: float) -> float:
    """Returns the estimated duration of a cell, from its settings and an assumed rate."""
    configuration = cell.row.configuration
    records = count(configuration, "producer.records")
    rate = number(configuration, "producer.rate") or ASSUMED_PER_S
    writing_s = records / rate if records else number(configuration, "producer.duration_s")
    stored_s = number(configuration, "topic.stored_mb") * 1e6 / 1024 / ASSUMED_PER_S
    reads_later = count(configuration, "consumers.clients") > 0 and configuration["consumers.read"] != "tail"
    return AROUND_S + warm_up_s + writing_s + stored_s + (writing_s if reads_later else 0.0)
