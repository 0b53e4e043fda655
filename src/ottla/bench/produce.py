"""Produce requests to one broker or three, in each durability class, beside the floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla.bench.floor import KEPT_BYTES, Exchange
from ottla.bench.frames import PreparedBatch, prepare_batch, produce_error_at, produce_frame, size_checks
from ottla.bench.pipeline import Load, LoadResult, drive
from ottla.bench.results import Goal, Row
from ottla.bench.targets import OneBroker, Target
from ottla.bench.throughput import FLOOR, FLOORS, KEEPING_FLOOR, Content, figures_of, rate_ratio
from ottla.bench.workbench import CLASSES, Pace, Workbench

KB = 1024
TOPIC_CONFIGS = {
    "segment.bytes": str(64 * KB * KB),
    "retention.bytes": str(256 * KB * KB),
    "retention.ms": "2500",
}
"""A log in its steady state, where old data is deleted while new data arrives.

A retention of a few seconds makes the broker check often; the time limit itself removes nothing, because the batches'
timestamps are ahead of the clock.
"""

CACHE_GOAL = 0.7
DISK_GOAL = 0.6


@dataclass(frozen=True, slots=True)
class ProduceCase:
    """One shape of requests."""

    name: str
    record_bytes: int
    batch_bytes_max: int
    inflight: int
    goal_of: str = ""
    """The durability class whose goal this case shows."""
    connections: int = 1


CASES = (
    ProduceCase("100 B, 16 KB batches", 100, 16 * KB, 16),
    ProduceCase("1 KB, 16 KB batches", KB, 16 * KB, 16),
    ProduceCase("10 KB, one a batch", 10 * KB, 16 * KB, 16),
    ProduceCase("1 KB, 128 KB batches", KB, 128 * KB, 16, goal_of="cache"),
    ProduceCase("1 KB, one a batch, 64 in flight", KB, KB, 64, goal_of="disk"),
    ProduceCase("1 KB, one a batch, 1 in flight", KB, KB, 1),
    ProduceCase("1 KB, one a batch, 64 in flight, 16 connections", KB, KB, 64, goal_of="disk", connections=16),
)
"""16 in flight on one connection, unless the name says otherwise. 16 KB is the Java client's `batch.size`.

The Java client has at most five requests in flight on a connection, and so has librdkafka if it is idempotent: 64 on
one connection arrive in longer runs than theirs.
"""


REPLICATED_CASES = (*CASES[:3], CASES[5])
"""The cases with three replicas."""


REPLICATED_FLOORS = (FLOOR,)


def estimate_s(pace: Pace, floors: Sequence[str] = FLOORS) -> float:
    """Returns the estimated duration of one case, in seconds."""
    return pace.repetitions * (len(floors) + len(CLASSES)) * pace.measurement_s


def measure(bench: Workbench, case: ProduceCase, target: Target, pace: Pace) -> list[Row]:
    """Measures the floors and the durability classes in turn, so that noise affects all of them."""
    batch = prepare_batch(case.record_bytes, case.batch_bytes_max, bench.timestamp_ms)
    number = CASES.index(case) if case in CASES else 0
    topics = {durability: f"produce-{number}-{durability}" for durability in CLASSES}
    floors = FLOORS if isinstance(target, OneBroker) else REPLICATED_FLOORS
    runs: dict[str, list[LoadResult]] = {subject: [] for subject in (*floors, *CLASSES)}
    for durability, topic in topics.items():
        target.create([topic], {**TOPIC_CONFIGS, "ottla.durability": durability})
    name = f"{target.prefix}produce"
    for _ in range(pace.repetitions):
        for subject in floors:
            bench.advance(0, f"{name} {case.name}: {subject}")
            runs[subject].append(run_on_floor(bench, case, batch, pace, keeps=subject == KEEPING_FLOOR))
            bench.advance(pace.measurement_s, "")
        for durability, topic in topics.items():
            bench.advance(0, f"{name} {case.name}: {durability}")
            runs[durability].append(run_on_broker(bench, case, batch, topic, target, pace))
            bench.advance(pace.measurement_s, "")
    target.delete(list(topics.values()))
    content = Content(batch.value_bytes, batch.record_count)
    return [
        Row(name, case.name, subject, figures_of(content, found, runs[FLOOR]), goal_for(case, subject, runs, target))
        for subject, found in runs.items()
    ]


def goal_for(case: ProduceCase, subject: str, runs: dict[str, list[LoadResult]], target: Target) -> Goal | None:
    """Returns the goal of a row, or None. Only a single broker has goals."""
    if subject != case.goal_of or not isinstance(target, OneBroker):
        return None
    if subject == "cache":
        return Goal("of the floor", rate_ratio(runs[subject], runs[FLOOR]), CACHE_GOAL)
    return Goal("of memory's requests/s", rate_ratio(runs[subject], runs["memory"]), DISK_GOAL)


def run_on_floor(
    bench: Workbench, case: ProduceCase, batch: PreparedBatch, pace: Pace, *, keeps: bool = False
) -> LoadResult:
    """Measures the floor with the same bytes as the broker gets."""
    frame = produce_frame("produce-0-memory", batch)
    exchange = Exchange(len(frame), kept_bytes=KEPT_BYTES if keeps else 0)
    bench.floor.expect(exchange)
    load = Load(
        port=bench.floor.port,
        requests=frame,
        request_bytes=len(frame),
        reply_bytes=exchange.reply_bytes,
        inflight=case.inflight,
        warm_up_s=pace.warm_up_s,
        seconds=pace.seconds,
        server_pids=(bench.floor.pid,),
    )
    return bench.driver.call(drive, load)


def run_on_broker(
    bench: Workbench, case: ProduceCase, batch: PreparedBatch, topic: str, target: Target, pace: Pace
) -> LoadResult:
    """Drives one topic and checks that every acknowledged record is in the log."""
    frame = produce_frame(topic, batch)
    with target.caller(topic) as caller:
        begin_offset = caller.end_offset(topic)
        reply_bytes = len(caller.exchange(frame))
        checks = (*size_checks(reply_bytes), (produce_error_at(topic), 0))
        load = Load(
            port=target.leader(topic).port,
            requests=frame,
            request_bytes=len(frame),
            reply_bytes=reply_bytes,
            inflight=case.inflight,
            warm_up_s=pace.warm_up_s,
            seconds=pace.seconds,
            server_pids=target.pids(),
            checks=checks,
            connections=case.connections,
        )
        measured = bench.driver.call(drive, load)
        appended = caller.end_offset(topic) - begin_offset
    if appended != (measured.requests_sent + 1) * batch.record_count:
        raise RuntimeError(f"{topic}: {appended} records appended, {measured.requests_sent + 1} batches acknowledged")
    return measured
