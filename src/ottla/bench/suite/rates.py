"""Rates relative to the result of another row: half of a peer's saturation, or more than a target can take."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ottla.bench.suite.loads import LoadFailedError
from ottla.bench.suite.settings import Configuration, Value, number
from ottla.bench.suite.store import Line


def with_rate(configuration: Configuration, target: str, lines: Iterable[Line]) -> tuple[dict[str, Value], float]:
    """Returns the configuration with its rate, and the other row's result so far (0 if the rate is a plain number)."""
    label = configuration["producer.rate_of"]
    if not label:
        return dict(configuration), 0.0
    wanted = configuration["producer.rate_target"] or target
    reached = [
        float(line["figures"]["records_per_s"])
        for line in lines
        if line.get("kind") == "cell" and line["label"] == label and line["target"] == wanted and "figures" in line
    ]
    if not reached:
        raise LoadFailedError(f'the row "{label}" was not measured on {wanted}, so it has no rate to use')
    rate = round(median(reached) * number(configuration, "producer.rate_share"))
    return {**configuration, "producer.rate": max(rate, 1)}, median(reached)
