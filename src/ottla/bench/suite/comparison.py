"""Compares two runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ottla.bench.suite.figures import FIGURES, shown
from ottla.bench.suite.run_results import RATIOS_SHOWN, Results
from ottla.bench.suite.statistics import Ratio, unpaired_ratio


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one figure between two runs."""

    target: str
    label: str
    figure: str
    earlier: float
    later: float
    ratio: Ratio

    @property
    def verdict(self) -> str:
        """Returns the verdict. A change counts if the repetitions of the two runs do not overlap."""
        if not self.ratio.is_clear:
            return "within the noise"
        return "better" if (self.ratio.ratio > 1) == FIGURES[self.figure].higher_is_better else "worse"

    def cells(self) -> list[str]:
        """Returns the row of a table."""
        ratios = [f"{value:.2f}" for value in self.ratio]
        values = [shown(self.figure, value) for value in (self.earlier, self.later)]
        return [self.target, self.label, FIGURES[self.figure].heading, *values, *ratios, self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Returns the change with both values, the ratio with its interval, and the verdict."""
        return {
            "target": self.target,
            "label": self.label,
            "figure": self.figure,
            "a": self.earlier,
            "b": self.later,
            **self.ratio._asdict(),
            "verdict": self.verdict,
        }


def compare_results(earlier: Results, later: Results) -> list[Change]:
    """Compares what both runs have: the same configuration on a target of the same name."""
    found = []
    for at, cell in later.cells.items():
        before = earlier.cells.get(at)
        if before is None:
            continue
        for figure in RATIOS_SHOWN:
            old, new = before.figures.get(figure, {}), cell.figures.get(figure, {})
            ratio = unpaired_ratio(list(new.values()), list(old.values()))
            one, other = before.summary(figure), cell.summary(figure)
            if ratio is not None and one is not None and other is not None:
                found.append(Change(cell.target, cell.label, figure, one.median, other.median, ratio))
    return found
