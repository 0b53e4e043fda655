"""The rows of a run that could not be measured. They come first in every report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.bench.suite.run_results import Results


class Failure(NamedTuple):
    """A row or a target that could not be measured."""

    what: str
    """The target and the row."""
    reason: str
    """The reason of the last failed repetition."""
    extent: str
    """How many repetitions failed. Empty for a target that could not be started."""

    @property
    def text(self) -> str:
        """The failure in one line."""
        return f"{self.what}: {self.reason}" + (f" ({self.extent})" if self.extent else "")


def failures_of(results: Results) -> list[Failure]:
    """Returns the failures, rows without any measurement first. Repetitions measured by a later run are excluded."""
    found = [Failure(f"{target} on {storage}", why, "") for (target, storage), why in results.unavailable.items()]
    failed = [cell for cell in results.cells.values() if cell.failures]
    for cell in sorted(failed, key=lambda cell: bool(cell.figures)):
        count = len(cell.failures)
        extent = f"{count} of {count + cell.repetitions} repetitions"
        found.append(Failure(f"{cell.target}: {cell.label}", cell.failures[-1], extent))
    return found


def heading_of(failures: Sequence[Failure]) -> str:
    """Returns the heading of a list of failures, with their number."""
    return f"{len(failures)} row{'' if len(failures) == 1 else 's'} failed"
