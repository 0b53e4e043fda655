"""Goals for the ratio of two targets, `records_per_s >= 1.5`, or for one target, `own share_of_row >= 0.9`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ottla.bench.suite.figures import FIGURES

_FORM = re.compile(r"\s*(own\s+)?(\w+)\s*(<=|>=)\s*(\d+(?:\.\d+)?)\s*x?\s*")


@dataclass(frozen=True, slots=True)
class RatioGoal:
    """A goal, shown beside the ratio. A benchmark never fails because of it."""

    figure: str
    at_least: bool
    bound: float
    is_own: bool = False
    """Whether the goal is for the subject's figure itself."""

    def is_met(self, ratio: float) -> bool:
        """Returns whether the ratio is on the right side of the bound."""
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    @property
    def text(self) -> str:
        """The goal in the syntax of a matrix file."""
        return f"{'own ' if self.is_own else ''}{self.figure} {'>=' if self.at_least else '<='} {self.bound:g}"


def parse_goal(text: str) -> RatioGoal | str:
    """Returns the goal, or what is wrong with the text."""
    form = _FORM.fullmatch(text)
    if form is None:
        return f'"{text}" is not a goal like "records_per_s >= 1.5"'
    own, figure, sign, bound = form.groups()
    if figure not in FIGURES:
        return f'"{figure}" is not a figure; there are {", ".join(FIGURES)}'
    return RatioGoal(figure, sign == ">=", float(bound), own is not None)
