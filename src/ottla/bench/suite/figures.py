"""The figures of a measurement, with their meanings. Names end with units."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """How a figure is shown."""

    heading: str
    meaning: str
    higher_is_better: bool = False
    divide_by: float = 1.0
    """Converts the stored value into the shown one."""


FIGURES = {
    "records_per_s": Figure("records/s", "acknowledged records per second of all producers", True),
    "mb_per_s": Figure("MB/s", "of values that were acknowledged", True),
    "p50_us": Figure("p50 ms", "latency of an acknowledgement", divide_by=1000),
    "p99_us": Figure("p99 ms", "latency of an acknowledgement", divide_by=1000),
    "p999_us": Figure("p99.9 ms", "latency of an acknowledgement", divide_by=1000),
    "max_us": Figure("max ms", "latency of an acknowledgement", divide_by=1000),
    "read_records_per_s": Figure("read records/s", "of all consumers", True),
    "read_mb_per_s": Figure("read MB/s", "of values, by all consumers", True),
    "end_to_end_p50_us": Figure("e2e p50 ms", "from when a record was due to when a consumer had it", divide_by=1000),
    "end_to_end_p99_us": Figure("e2e p99 ms", "from when a record was due to when a consumer had it", divide_by=1000),
    "end_to_end_p999_us": Figure(
        "e2e p99.9 ms", "from when a record was due to when a consumer had it", divide_by=1000
    ),
    "brokers_cpu_s_per_gb": Figure("broker CPU s/GB", "user and system time of all brokers, while producers wrote"),
    "read_brokers_cpu_s_per_gb": Figure("read broker CPU s/GB", "the same, while consumers read what was written"),
    "clients_cpu_s_per_gb": Figure("client CPU s/GB", "of all producers"),
    "broker_memory_mb": Figure("broker MB", "the largest resident memory of one broker"),
    "clients_memory_mb": Figure("client MB", "the largest resident memory of all producers together"),
    "others_cpu_share": Figure("others busy", "cores that brokers of other targets took meanwhile"),
    "behind_share": Figure("not sent", "share of the offered records that did not fit into the producers' buffers"),
    "offered_per_s": Figure("offered/s", "records a second that were due"),
    "share_of_row": Figure(
        "of the row", "records/s as a share of what the row reached that the rate is taken from", True
    ),
    "start_s": Figure("start s", "from the start of the processes to the first acknowledged write"),
    "idle_memory_mb": Figure("idle MB", "resident memory of one broker after its start"),
}


def shown(name: str, value: float) -> str:
    """Formats the value of a figure."""
    scaled = value / FIGURES[name].divide_by
    if abs(scaled) >= 1000:
        return f"{scaled:,.0f}"
    return f"{scaled:.1f}" if abs(scaled) >= 100 else f"{scaled:.3g}"
