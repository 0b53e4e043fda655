"""Computes the figures of a row from the reports of producers and probe. Checks what must hold at any load. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ottla.bench.quotients import per, rate
from ottla.bench.results import Row
from ottla.bench.saturation.plan import BURST, PEAK, Configuration, Load
from ottla.bench.saturation.probe import ProbeResult, WaitTimes
from ottla.bench.saturation.producers import OfferResult

GROUP = "saturation"
GOODPUT_SHARE = 0.8
PROBE_MAX_MS = 250.0


@dataclass(frozen=True, slots=True)
class SaturationResult:
    """All observations of one row."""

    configuration: Configuration
    load: Load
    seconds: float
    """The measured time, in which acknowledged records count as goodput.

    A peak and a burst last until everything is acknowledged.
    """
    offered: Sequence[OfferResult]
    written: int | None
    """The growth of the log end offsets, or None if they could not be read."""
    shrinks: int
    probed: ProbeResult
    memory_bytes: int = 0
    """The peak memory of any broker."""
    ended_brokers: int = 0
    """The number of broker processes that ended."""

    @property
    def acknowledged_in_time(self) -> int:
        """Records acknowledged while load was offered; for a peak or a burst, all of them."""
        if self.load.name in (PEAK, BURST):
            return self.acknowledged
        return sum(each.acknowledged_in_time for each in self.offered)

    @property
    def acknowledged(self) -> int:
        """Records acknowledged by the end, including those that arrived while the queues drained."""
        return sum(each.acknowledged for each in self.offered)

    @property
    def warm_up(self) -> int:
        """Records written before the measurement began, to connect the producers."""
        return sum(each.warm_up for each in self.offered)

    @property
    def records_per_s(self) -> float:
        """The goodput: records acknowledged in time, per second."""
        return rate(self.acknowledged_in_time, self.seconds)


def figures_of(row: SaturationResult) -> dict[str, float]:
    """Returns the figures of a row, as they are stored."""
    offered = sum(each.offered for each in row.offered)
    record_bytes = row.configuration.record_bytes
    figures = {
        "seconds": row.seconds,
        "factor": row.load.factor,
        "offered_records_per_s": rate(offered, row.seconds),
        "shed": sum(each.shed for each in row.offered),
        "mb_per_s": row.records_per_s * record_bytes / 1e6,
        "records_per_s": row.records_per_s,
        "acknowledged": row.acknowledged,
        "failed": sum(each.failed + each.unresolved for each in row.offered),
        "drain_s": max((each.last_acknowledged_s for each in row.offered), default=0.0)
        - max((each.offered_s for each in row.offered), default=0.0),
        "isr_shrinks": row.shrinks,
        "broker_memory_mb": row.memory_bytes / 1e6,
        "ended_brokers": row.ended_brokers,
        **_waits("probe", row.probed.requests),
        **_waits("produce", row.probed.produces),
    }
    if row.written is not None:
        unexpected = row.written - row.warm_up - row.acknowledged
        figures["duplicates"], figures["lost"] = max(unexpected, 0), max(-unexpected, 0)
    return figures


def _waits(name: str, waits: WaitTimes) -> dict[str, float]:
    latencies = waits.latencies
    return {
        f"{name}_p50_ms": latencies.percentile(0.5) / 1000,
        f"{name}_p99_ms": latencies.percentile(0.99) / 1000,
        f"{name}_max_ms": latencies.largest_us / 1000,
        f"{name}_late_max_ms": waits.late_max_us / 1000,
        f"{name}_count": latencies.count,
        f"{name}_errors": waits.errors,
    }


def rows_of(measured: Sequence[SaturationResult], durability: str) -> list[Row]:
    """Returns the rows of one configuration. Their share of the peak refers to the highest goodput among them."""
    peak = max((each.records_per_s for each in measured), default=0.0)
    rows = []
    for each in measured:
        figures = figures_of(each)
        figures["share_of_peak"] = per(each.records_per_s, peak)
        figures["share_of_expected"] = share_of_expected(each, peak)
        errors: dict[str, int] = {}
        for one in each.offered:
            for name, count in one.errors.items():
                errors[name] = errors.get(name, 0) + count
        notes = {"errors": ", ".join(f"{name} {count}" for name, count in sorted(errors.items()))} if errors else {}
        rows.append(Row(GROUP, f"{each.configuration.name}, {each.load.name}", durability, figures, notes=notes))
    return rows


def share_of_expected(row: SaturationResult, peak: float) -> float:
    """Returns goodput as a share of the expected goodput: the offered load, or the peak if that is less."""
    offered = rate(sum(each.offered for each in row.offered), row.seconds)
    expected = peak if row.load.name in (PEAK, BURST) else min(offered, peak)
    return per(row.records_per_s, expected)


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that must hold at any load, checked in all rows."""

    what: str
    is_kept: bool
    worst: str
    """The worst row and its figure."""
    broken: int
    rows: int


def checks_of(rows: Sequence[Row]) -> list[Check]:
    """Checks all conditions. Returns an empty list if there are no rows."""
    if not rows:
        return []
    return [
        _check(
            f"goodput stays within {1 - GOODPUT_SHARE:.0%} of its peak, or of the offered load if that is less",
            rows,
            "share_of_expected",
            lambda value: value >= GOODPUT_SHARE,
            lambda value: f"{value:.0%}",
            largest_is_worst=False,
        ),
        _check_zero("no replica leaves the ISR", rows, "isr_shrinks"),
        _check_wait("no ApiVersions or Metadata of another client waits", rows, "probe_max_ms"),
        _check_wait("no small produce of another client waits", rows, "produce_max_ms"),
        _check_zero("no record fails or times out", rows, "failed"),
        _check_zero("no acknowledged record is lost", rows, "lost"),
        _check_zero("no broker ends", rows, "ended_brokers"),
    ]


def _check_zero(what: str, rows: Sequence[Row], figure: str) -> Check:
    return _check(what, rows, figure, lambda value: value == 0, lambda value: f"{value:.0f}")


def _check_wait(what: str, rows: Sequence[Row], figure: str) -> Check:
    what = f"{what} more than {PROBE_MAX_MS:.0f} ms"
    return _check(what, rows, figure, lambda value: value <= PROBE_MAX_MS, lambda value: f"{value:.0f} ms")


def _check(
    what: str,
    rows: Sequence[Row],
    figure: str,
    is_kept: Callable[[float], bool],
    text: Callable[[float], str],
    *,
    largest_is_worst: bool = True,
) -> Check:
    known = [row for row in rows if figure in row.figures]
    if not known:
        return Check(what, False, "not measured", 0, 0)
    worst = (max if largest_is_worst else min)(known, key=lambda row: row.figures[figure])
    broken = sum(not is_kept(row.figures[figure]) for row in known)
    return Check(what, not broken, f"{text(worst.figures[figure])}: {worst.case}", broken, len(known))
