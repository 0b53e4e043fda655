"""Measures one cluster: its cost while idle and under load, and how long faults and stops take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ottla.bench.calls import Caller
from ottla.bench.frames import prepare_batch, produce_error_at, produce_frame, size_checks
from ottla.bench.growth.cluster import BUSY, REPLICAS, WAIT_S, GrownCluster, idle_connections
from ottla.bench.latencies import percentiles
from ottla.bench.pipeline import Load, LoadResult, drive
from ottla.bench.processes import Worker, cpu_seconds
from ottla.bench.quotients import rate
from ottla.bench.results import Row
from ottla.bench.throughput import Content, cpu_s_per_gb

KB = 1024
SETTLE_S = 2.0
SETTLE_S_MAX = 30.0
SETTLED_CORE_SHARE = 0.05
GROUP = "growth"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    partitions: int
    connections: int = 0
    with_faults: bool = True
    """Whether brokers are also killed, stopped and started."""

    @property
    def name(self) -> str:
        """The number of partitions, and of connections if there are any."""
        connections = f", {self.connections:,} connections" if self.connections else ""
        return f"{self.partitions:,} partitions{connections}"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each measurement takes, in seconds."""

    idle_s: float = 6.0
    load_s: float = 4.0
    warm_up_s: float = 1.0


def measure(case: Case, directory: Path, pace: Pace, say: Say) -> Row:
    """Builds a cluster for a case, measures it and removes it. A step that fails is left out of the row and noted."""
    cluster = GrownCluster(directory, case.partitions)
    figures: dict[str, float] = {}
    notes: dict[str, str] = {}
    steps: list[tuple[str, Callable[[], dict[str, float]]]] = [
        ("idle", lambda: idle(cluster, pace)),
        ("load", lambda: loaded(cluster, pace)),
    ]
    with cluster.processes:
        begin = time.perf_counter()
        cluster.fill()
        figures["created_s"] = time.perf_counter() - begin
        with idle_connections(cluster, case.connections):
            _run(steps, case, figures, notes, say)
        if case.with_faults:
            faults = [
                ("kill of one broker", lambda: leaders_moved(cluster)),
                ("stop of one broker", lambda: stopped(cluster)),
                ("kill of all brokers", lambda: restarted(cluster)),
            ]
            _run(faults, case, figures, notes, say)
    return Row(GROUP, case.name, "", figures, notes=notes)


def _run(
    steps: list[tuple[str, Callable[[], dict[str, float]]]],
    case: Case,
    figures: dict[str, float],
    notes: dict[str, str],
    say: Say,
) -> None:
    for what, step in steps:
        say(f"{case.name}: {what}")
        try:
            figures |= step()
        except Exception as failure:
            notes[what] = f"{type(failure).__name__}: {failure}"
            say(f"{case.name}: {what} failed: {failure}")


def idle(cluster: GrownCluster, pace: Pace) -> dict[str, float]:
    """Measures the share of a core that each broker uses without any load; the highest counts."""
    settle(cluster)
    return {"idle_core_share": core_share(cluster, pace.idle_s)}


def settle(cluster: GrownCluster) -> None:
    """Waits until the brokers have flushed the records that were just written, up to a limit: an idle broker may be
    busy all the time."""
    deadline = time.perf_counter() + SETTLE_S_MAX
    time.sleep(SETTLE_S)
    while core_share(cluster, SETTLE_S) > SETTLED_CORE_SHARE and time.perf_counter() < deadline:
        continue


def core_share(cluster: GrownCluster, seconds: float) -> float:
    """Returns the share of a core that the busiest broker uses during this time."""
    pids = [broker.pid for broker in cluster.processes.brokers]
    before, begin = [cpu_seconds(pid) for pid in pids], time.perf_counter()
    time.sleep(seconds)
    elapsed_s = time.perf_counter() - begin
    return rate(max(cpu_seconds(pid) - earlier for pid, earlier in zip(pids, before, strict=True)), elapsed_s)


def loaded(cluster: GrownCluster, pace: Pace) -> dict[str, float]:
    """Measures one record at a time, then a stream of 16 KB batches, to one partition with acks=all."""
    with Worker() as driver:
        one, _ = _drive(cluster, driver, KB, 1, pace)
        stream, content = _drive(cluster, driver, 16 * KB, 16, pace)
    latencies = percentiles(one.latencies)
    return {
        "sync_p50_us": latencies.p50_us,
        "sync_p99_us": latencies.p99_us,
        "sync_requests_per_s": one.requests_per_s,
        "mb_per_s": stream.requests_per_s * content.value_bytes / 1e6,
        "cpu_s_per_gb": cpu_s_per_gb(content, stream),
    }


def _drive(
    cluster: GrownCluster, driver: Worker, batch_bytes: int, inflight: int, pace: Pace
) -> tuple[LoadResult, Content]:
    batch = prepare_batch(KB, batch_bytes, int(time.time() * 1000))
    frame = produce_frame(BUSY, batch)
    leader = cluster.processes.broker(cluster.leader_of_busy())
    with Caller(leader.port, timeout_s=WAIT_S) as caller:
        reply_bytes = len(caller.exchange(frame))
    load = Load(
        port=leader.port,
        requests=frame,
        request_bytes=len(frame),
        reply_bytes=reply_bytes,
        inflight=inflight,
        warm_up_s=pace.warm_up_s,
        seconds=pace.load_s,
        server_pids=tuple(broker.pid for broker in cluster.processes.brokers),
        checks=(*size_checks(reply_bytes), (produce_error_at(BUSY), 0)),
    )
    return driver.call(drive, load), Content(batch.value_bytes, batch.record_count)


def leaders_moved(cluster: GrownCluster) -> dict[str, float]:
    """Kills one broker, and measures the time until a survivor names another leader for each of its partitions."""
    dead = cluster.leader_of_busy()
    others = [node for node in range(1, REPLICAS + 1) if node != dead]
    killed_at = time.perf_counter()
    cluster.processes.broker(dead).kill()
    moved_s = cluster.wait_until_led(by=others) - killed_at
    begin = time.perf_counter()
    cluster.processes.broker(dead).start()
    started_s = time.perf_counter() - begin
    in_sync_s = cluster.wait_until_led(in_sync=REPLICAS) - begin
    return {"leaders_moved_s": moved_s, "one_started_s": started_s, "one_in_sync_s": in_sync_s}


def stopped(cluster: GrownCluster) -> dict[str, float]:
    """Stops one broker with SIGTERM, which hands over its leaderships, and starts it again."""
    broker = cluster.processes.broker(cluster.leader_of_busy())
    begin = time.perf_counter()
    broker.stop(WAIT_S)
    stopped_s = time.perf_counter() - begin
    broker.start()
    cluster.wait_until_led(in_sync=REPLICAS)
    return {"stop_s": stopped_s}


def restarted(cluster: GrownCluster) -> dict[str, float]:
    """Kills all brokers, starts them, and measures the time until a write is acknowledged."""
    cluster.processes.kill()
    begin = time.perf_counter()
    cluster.processes.start()
    figures = {"restart_s": cluster.first_write(begin)}
    figures["restart_all_led_s"] = cluster.wait_until_led() - begin
    return figures
