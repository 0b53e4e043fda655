"""Computes figures from the reports of the drivers and the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ottla.bench.quotients import per, rate
from ottla.bench.suite.histogram import Histogram, merged
from ottla.bench.suite.loads import ConsumerResult, ProducerResult


class Costs(Protocol):
    """The resource usage of processes over time."""

    def cpu_s(self, group: str, begin_ns: int, end_ns: int) -> float:
        """Returns the CPU time that a group of processes used between two moments."""
        ...

    def resident_bytes_max(self, group: str, begin_ns: int, end_ns: int) -> list[int]:
        """Returns the peak memory of each process of the group between two moments; empty if unknown."""
        ...


def produced_figures(produced: Sequence[ProducerResult], costs: Costs) -> dict[str, float]:
    """Computes the figures of producers. The time runs from the first client's begin to the last client's end."""
    begin_ns, end_ns = min(each.begin_ns for each in produced), max(each.end_ns for each in produced)
    seconds = (end_ns - begin_ns) / 1e9
    records, value_bytes = sum(each.records for each in produced), sum(each.value_bytes for each in produced)
    offered = sum(each.offered for each in produced)
    if not records:
        return {"records_per_s": 0.0, "mb_per_s": 0.0}
    figures = {
        "records_per_s": rate(records, seconds),
        "mb_per_s": rate(value_bytes / 1e6, seconds),
        **_latencies(produced),
        "clients_cpu_s_per_gb": per(costs.cpu_s("clients", begin_ns, end_ns), value_bytes / 1e9),
        "clients_memory_mb": sum(costs.resident_bytes_max("clients", begin_ns, end_ns)) / 1e6,
        "others_cpu_share": rate(costs.cpu_s("others", begin_ns, end_ns), seconds),
        "behind_share": max(0.0, 1 - records / max(offered, records)),
    }
    if any(each.has_rate for each in produced):
        figures["offered_per_s"] = rate(offered, seconds)
    if memory := costs.resident_bytes_max("brokers", begin_ns, end_ns):
        figures["brokers_cpu_s_per_gb"] = per(costs.cpu_s("brokers", begin_ns, end_ns), value_bytes / 1e9)
        figures["broker_memory_mb"] = max(memory) / 1e6
    return figures


def _latencies(produced: Sequence[ProducerResult]) -> dict[str, float]:
    """Returns latencies of all clients together, or those of the worst client if the tool reports percentiles only."""
    told = [each.percentiles_us for each in produced if each.percentiles_us]
    if told:
        return {name: max(each[name] for each in told) for name in told[0]}
    return percentile_figures(merged(each.latencies for each in produced), "")


def percentile_figures(latencies: Histogram, prefix: str) -> dict[str, float]:
    """Returns the percentiles by figure name; none without values. The maximum only without a prefix."""
    if not latencies.count:
        return {}
    shares = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
    found = {f"{prefix}{name}": float(latencies.percentile(share)) for name, share in shares.items()}
    return found if prefix else found | {"max_us": float(latencies.largest_us)}


def consumed_figures(consumed: Sequence[ConsumerResult], costs: Costs | None = None) -> dict[str, float]:
    """Returns the read rates of all consumers together, and the brokers' CPU time per GB if it is known."""
    begin_ns, end_ns = min(each.begin_ns for each in consumed), max(each.end_ns for each in consumed)
    if end_ns <= begin_ns:
        return {}
    seconds = (end_ns - begin_ns) / 1e9
    value_bytes = sum(each.value_bytes for each in consumed)
    figures = {
        "read_records_per_s": rate(sum(each.records for each in consumed), seconds),
        "read_mb_per_s": rate(value_bytes / 1e6, seconds),
    }
    if costs is not None and value_bytes and costs.resident_bytes_max("brokers", begin_ns, end_ns):
        figures["read_brokers_cpu_s_per_gb"] = per(costs.cpu_s("brokers", begin_ns, end_ns), value_bytes / 1e9)
    return figures


def end_to_end_figures(consumed: Sequence[ConsumerResult]) -> dict[str, float]:
    """Returns the percentiles of the time from when a record was due to when it was read."""
    return percentile_figures(merged(each.latencies for each in consumed), "end_to_end_")
