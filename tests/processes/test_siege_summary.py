"""The summary table of a siege: its counts, and which phase each latency and gap belongs to."""

from __future__ import annotations

from tests.processes.siege.checker import check
from tests.processes.siege.history import History
from tests.processes.siege.summary import percentile, phases_of, render, totals

SECOND = 1_000_000
PARTITIONS = ("p", "q")


def line(at_s: float, *fields: object) -> str:
    return "\t".join(map(str, (int(at_s * SECOND), *fields))) + "\n"


def siege() -> History:
    """Ten calm seconds, ten of a fault, ten calm ones. `p` has no writes for six seconds of the fault, `q` has some."""
    history = History()
    marks = [line(0, "phase", "-", "calm"), line(10, "phase", "-", "kill"), line(20, "phase", "-", "calm")]
    marks += [line(10, "fault", "-", "kill", "begin", "broker-1"), line(30, "phase", "-", "over")]
    history.add("nemesis", marks)
    lines = [line(0, "source", "-", 1, "librdkafka", 1)]
    for name in PARTITIONS:
        at_s = [second for second in range(1, 30) if name == "q" or not 12 <= second < 18]
        lines.append(line(0, "send", name, 1, 0, len(at_s) + 1))
        for sequence, second in enumerate(at_s):
            latency_us = 5000 if second != 13 else 2 * SECOND
            lines.append(line(second, "ok", name, 1, sequence, sequence, latency_us))
    history.add("writer", lines)
    return history


def test_totals() -> None:
    found = totals(siege())
    assert (found["sent"], found["acknowledged"], found["unknown"]) == (54, 52, 2)


def test_phases_of_one_name_count_together() -> None:
    phases = phases_of(siege())
    assert phases["calm"].seconds == 20
    assert phases["kill"].seconds == 10
    assert sum(len(phase.latencies_us) for phase in phases.values()) == 52


def test_a_gap_belongs_to_the_phase_in_which_most_of_it_was() -> None:
    phases = phases_of(siege())
    assert phases["kill"].partition_gap_us == 7 * SECOND
    assert phases["kill"].gap_us == SECOND
    assert phases["calm"].partition_gap_us == SECOND


def test_a_latency_belongs_to_the_phase_in_which_the_record_was_sent() -> None:
    phases = phases_of(siege())
    assert max(phases["kill"].latencies_us) == 2 * SECOND
    assert max(phases["calm"].latencies_us) == 5000


def test_the_table_names_faults_and_anomalies() -> None:
    history = siege()
    text = render(history, check(history), "title")
    assert "1 faults: kill 1" in text
    assert "anomalies: none" in text
    history.broken.append("it broke")
    assert "it broke" in render(history, check(history), "title")


def test_percentiles() -> None:
    values = list(range(1, 101))
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (51, 100, 100)
    assert percentile([], 0.5) == 0
