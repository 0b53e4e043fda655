"""Times and memory that do not depend on load: startup, idling, and a thousand topics."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

from ottla.bench.frames import prepare_batch, produce_frame
from ottla.bench.processes import resident_bytes
from ottla.bench.results import Goal, Row
from ottla.bench.workbench import Workbench
from ottla.testing.broker_process import BrokerProcess

T = TypeVar("T")

START_GOAL_S = 0.5
RSS_GOAL_MB = 60.0
TOPICS = 1000
TOPICS_QUICK = 200
PARTITIONS = 3
REQUESTS = 10
STOP_TIMEOUT_S = 120.0
IDLE_S = 1.0
RECORD_BYTES = 100
ESTIMATE_START_S = 5.0
ESTIMATE_A_TOPIC_S = 0.035
START_CLUSTER = """
import sys, time
begin = time.perf_counter()
from ottla.testing import Cluster
imported = time.perf_counter()
with Cluster(data_dir=sys.argv[1]):
    print(imported - begin, time.perf_counter() - imported)
"""


def measure_start(bench: Workbench) -> list[Row]:
    """Measures the cluster for tests, in a new process each time, and an idle broker."""
    times = []
    for _ in range(max(bench.pace.repetitions, 2)):
        bench.advance(0, "start: the cluster for tests")
        times.append(start_cluster(bench.directory))
        bench.advance(1.0, "")
    imported, started = (median(values) for values in zip(*times, strict=True))
    bench.advance(0, "start: an idle broker")
    begin = time.perf_counter()
    broker = bench.new_broker()
    ready_s = time.perf_counter() - begin
    time.sleep(IDLE_S)
    resident = resident_bytes(broker.pid) / 1e6
    broker.stop()
    bench.advance(2.0, "")
    return [
        _row("in-process cluster: import and start", {"seconds": imported + started}, _start_goal(imported + started)),
        _row("in-process cluster: start", {"seconds": started}, _start_goal(started)),
        _row("broker process: command to ready", {"seconds": ready_s}),
        _row("broker process: idle memory", {"mb": resident}, Goal("MB", resident, RSS_GOAL_MB, is_upper=True)),
    ]


def _start_goal(seconds: float) -> Goal:
    return Goal("s", seconds, START_GOAL_S, is_upper=True)


def start_cluster(directory: Path) -> tuple[float, float]:
    """Returns the seconds of the import and of the start, in a new interpreter."""
    command = [sys.executable, "-c", START_CLUSTER, str(directory / f"cluster-{time.time_ns()}")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    return float(printed[0]), float(printed[1])


def estimate_topics_s(count: int) -> float:
    """Returns the estimated duration of creating this many topics."""
    return 3.0 + count * ESTIMATE_A_TOPIC_S


def measure_topics(bench: Workbench, count: int) -> list[Row]:
    """Measures topics that are created, described and written, a restart after SIGKILL, and a clean stop."""
    names = [f"topic-{number:04d}" for number in range(count)]
    what = f"{count} topics x {PARTITIONS}"
    estimate_s = estimate_topics_s(count)
    bench.advance(0, f"{what}: in {REQUESTS} requests")
    rows = [_row(f"{what}: created, {REQUESTS} requests", {"seconds": _create_in_requests(bench, names)})]
    bench.advance(estimate_s / 3, f"{what}: in one request")
    broker = bench.new_broker()
    with bench.caller(broker) as caller:
        seconds, _ = timed(lambda: caller.create_topics(names, PARTITIONS, {}))
        rows.append(_row(f"{what}: created, one request", {"seconds": seconds}))
        rows.append(_row(f"{what}: described (metadata)", {"seconds": _describe(caller.describe_all, count)}))
        rows.append(_row(f"{what}: memory", {"mb": resident_bytes(broker.pid) / 1e6}))
        rows.append(_row(f"{what}: restart after kill -9, empty", _killed_and_restarted(broker)))
    bench.advance(estimate_s / 3, f"{what}: a record in each partition")
    with bench.caller(broker) as caller:
        seconds, _ = timed(lambda: _write_each(bench, caller.exchange, names))
        rows.append(_row(f"{what}: a record in each partition", {"seconds": seconds}))
        rows.append(_row(f"{what}: memory with records", {"mb": resident_bytes(broker.pid) / 1e6}))
    rows.append(_row(f"{what}: restart after kill -9, with records", _killed_and_restarted(broker)))
    with bench.caller(broker) as caller:
        rows.append(_row(f"{what}: described after that", {"seconds": _describe(caller.describe_all, count)}))
    rows.append(_row(f"{what}: memory after that", {"mb": resident_bytes(broker.pid) / 1e6}))
    seconds, _ = timed(lambda: broker.stop(STOP_TIMEOUT_S))
    rows.append(_row(f"{what}: clean stop", {"seconds": seconds}))
    bench.advance(estimate_s / 3, "")
    return rows


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """Returns the duration and the result of an action."""
    begin = time.perf_counter()
    result = action()
    return time.perf_counter() - begin, result


def _killed_and_restarted(broker: BrokerProcess) -> dict[str, float]:
    broker.kill()
    seconds, _ = timed(broker.start)
    return {"seconds": seconds}


def _create_in_requests(bench: Workbench, names: list[str]) -> float:
    broker = bench.new_broker()
    with bench.caller(broker) as caller:
        size = len(names) // REQUESTS
        begin = time.perf_counter()
        for at in range(0, len(names), size):
            caller.create_topics(names[at : at + size], PARTITIONS, {})
        seconds = time.perf_counter() - begin
    broker.kill()
    return seconds


def _describe(describe_all: Callable[[], int], count: int) -> float:
    """Returns the time to describe all topics, including the decoding by the client."""
    times = []
    for _ in range(3):
        seconds, partitions = timed(describe_all)
        if partitions != count * PARTITIONS:
            raise RuntimeError(f"{partitions} partitions instead of {count * PARTITIONS}")
        times.append(seconds)
    return median(times)


def _write_each(bench: Workbench, exchange: Callable[[bytes], bytes], names: list[str]) -> None:
    batch = prepare_batch(RECORD_BYTES, RECORD_BYTES, bench.timestamp_ms)
    for name in names:
        for partition in range(PARTITIONS):
            exchange(produce_frame(name, batch, partition))


def _row(case: str, figures: dict[str, float], goal: Goal | None = None) -> Row:
    return Row("single", case, "", figures, goal)
