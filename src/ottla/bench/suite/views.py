"""Groups the cells of a report into charts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ottla.bench.suite.matrix import label_of
from ottla.bench.suite.run_results import CellResult, Results
from ottla.bench.suite.settings import Value
from ottla.bench.suite.statistics import Effect, effects

LINES_MAX = 8
RATES = "producer.rate"
"""The prefix of all settings of the rate."""


class Group(NamedTuple):
    """The cells of one chart, and what they have in common."""

    title: str
    cells: list[CellResult]


class Curve(NamedTuple):
    """Cells that differ only in their rate, lowest first."""

    label: str
    target: str
    cells: list[CellResult]


def throughput_groups(results: Results) -> list[Group]:
    """Groups cells into charts of limited size, split by the strongest setting, so that rows of a chart are similar."""
    found = []
    for target in results.targets:
        cells = [cell for at, cell in results.cells.items() if at[1] == target and "mb_per_s" in cell.figures]
        found += _split(target, [cell for cell in cells if not cell.configuration["producer.rate"]], "")
    return found


def at_full_speed(cells: list[CellResult]) -> list[CellResult]:
    """Returns the cells without a rate, since a rate fixes the throughput. If all have one, returns all of them."""
    return [cell for cell in cells if not cell.configuration["producer.rate"]] or cells


def _split(title: str, cells: list[CellResult], common: str) -> list[Group]:
    if not cells:
        return []
    name = f"{title}: {common}" if common else title
    ranking = ranked(cells, "records_per_s")
    if len(cells) <= LINES_MAX or not ranking:
        return [Group(name, cells[at : at + LINES_MAX]) for at in range(0, len(cells), LINES_MAX)]
    setting = ranking[0].setting
    parts: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        parts[label_of({setting: cell.configuration[setting]})].append(cell)
    return [
        group for label, part in parts.items() for group in _split(title, part, f"{common}, {label}".removeprefix(", "))
    ]


def ranked(cells: Sequence[CellResult], figure: str) -> list[Effect]:
    """Returns the effects of settings on a figure, the strongest first."""
    usable = [(cell.configuration, found.median) for cell in cells if (found := cell.summary(figure)) is not None]
    return effects(usable)


def latency_curves(results: Results) -> list[list[Curve]]:
    """Returns the curves of each configuration, one for each target."""
    together: dict[str, dict[str, list[CellResult]]] = defaultdict(lambda: defaultdict(list))
    for cell in results.cells.values():
        if cell.configuration["producer.rate"] and "p50_us" in cell.figures:
            rest = {name: value for name, value in cell.configuration.items() if not name.startswith(RATES)}
            together[str(sorted(rest.items()))][cell.target].append(cell)
    varied = [name for name in results.varied() if not name.startswith(RATES)]
    found = []
    for by_target in together.values():
        curves = []
        for target, cells in by_target.items():
            cells.sort(key=_rate)
            label = label_of({name: cells[0].configuration[name] for name in varied}) if varied else ""
            curves.append(Curve(label, target, cells))
        if any(len(curve.cells) > 1 for curve in curves):
            found.append(curves)
    return found


def _rate(cell: CellResult) -> float:
    value: Value = cell.configuration["producer.rate"]
    return float(value)
