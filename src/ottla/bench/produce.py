"""Produce through one broker, in each durability class, beside the floor."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.bench.floor import Exchange
from ottla.bench.frames import PreparedBatch, prepare_batch, produce_error_at, produce_frame, size_checks
from ottla.bench.pipeline import Load, Measured, drive
from ottla.bench.results import Goal, Row
from ottla.bench.throughput import FLOOR, FLOORS, KEEPING_FLOOR, Content, figures_of, rate_ratio
from ottla.bench.workbench import CLASSES, Pace, Workbench

KB = 1024
TOPIC_CONFIGS = {
    "segment.bytes": str(64 * KB * KB),
    "retention.bytes": str(256 * KB * KB),
    "retention.ms": "2500",
}
"""A log in its steady state: old data goes while new data comes. A retention of a few seconds makes the broker look
often; the time itself removes nothing, because the batches' timestamps are ahead of the clock."""

CACHE_GOAL = 0.7
DISK_GOAL = 0.6


@dataclass(frozen=True, slots=True)
class ProduceCase:
    name: str
    record_bytes: int
    batch_bytes_max: int
    inflight: int
    goal_of: str = ""
    """The class whose goal this case shows."""


CASES = (
    ProduceCase("100 B, 16 KB batches", 100, 16 * KB, 16),
    ProduceCase("1 KB, 16 KB batches", KB, 16 * KB, 16),
    ProduceCase("10 KB, one a batch", 10 * KB, 16 * KB, 16),
    ProduceCase("1 KB, 128 KB batches", KB, 128 * KB, 16, goal_of="cache"),
    ProduceCase("1 KB, one a batch, 64 in flight", KB, KB, 64, goal_of="disk"),
    ProduceCase("1 KB, one a batch, 1 in flight", KB, KB, 1),
)
"""16 in flight, if the name does not say otherwise. 16 KB is the Java client's `batch.size`."""


def estimate_s(pace: Pace) -> float:
    return pace.repetitions * (len(FLOORS) + len(CLASSES)) * pace.measurement_s


def measure(bench: Workbench, case: ProduceCase) -> list[Row]:
    """The floors and the classes in turns: noise of the machine hits all of them."""
    batch = prepare_batch(case.record_bytes, case.batch_bytes_max, bench.timestamp_ms)
    number = CASES.index(case) if case in CASES else 0
    topics = {durability: f"produce-{number}-{durability}" for durability in CLASSES}
    runs: dict[str, list[Measured]] = {subject: [] for subject in (*FLOORS, *CLASSES)}
    for durability, topic in topics.items():
        with bench.caller() as caller:
            caller.create_topics([topic], 1, {**TOPIC_CONFIGS, "ottla.durability": durability})
    for _ in range(bench.pace.repetitions):
        for subject in FLOORS:
            bench.advance(0, f"produce {case.name}: {subject}")
            runs[subject].append(run_on_floor(bench, case, batch, keeps=subject == KEEPING_FLOOR))
            bench.advance(bench.pace.measurement_s, "")
        for durability, topic in topics.items():
            bench.advance(0, f"produce {case.name}: {durability}")
            runs[durability].append(run_on_broker(bench, case, batch, topic))
            bench.advance(bench.pace.measurement_s, "")
    with bench.caller() as caller:
        caller.delete_topics(topics.values())
    content = Content(batch.value_bytes, batch.record_count)
    return [
        Row("produce", case.name, subject, figures_of(content, found, runs[FLOOR]), goal_for(case, subject, runs))
        for subject, found in runs.items()
    ]


def goal_for(case: ProduceCase, subject: str, runs: dict[str, list[Measured]]) -> Goal | None:
    if subject != case.goal_of:
        return None
    if subject == "cache":
        return Goal("of the floor", rate_ratio(runs[subject], runs[FLOOR]), CACHE_GOAL)
    return Goal("of memory's requests/s", rate_ratio(runs[subject], runs["memory"]), DISK_GOAL)


def run_on_floor(bench: Workbench, case: ProduceCase, batch: PreparedBatch, *, keeps: bool = False) -> Measured:
    """The same bytes as the broker gets."""
    frame = produce_frame("produce-0-memory", batch)
    exchange = Exchange(len(frame), keeps=keeps)
    bench.floor.expect(exchange)
    pace = bench.pace
    reply_bytes = exchange.reply_bytes
    load = Load(
        bench.floor.port, frame, len(frame), reply_bytes, case.inflight, pace.warm_up_s, pace.seconds, bench.floor.pid
    )
    return bench.driver.call(drive, load)


def run_on_broker(bench: Workbench, case: ProduceCase, batch: PreparedBatch, topic: str) -> Measured:
    frame = produce_frame(topic, batch)
    pace = bench.pace
    with bench.caller() as caller:
        begin_offset = caller.end_offset(topic)
        reply_bytes = len(caller.exchange(frame))
        checks = (*size_checks(reply_bytes), (produce_error_at(topic), 0))
        load = Load(
            port=bench.broker.port,
            requests=frame,
            request_bytes=len(frame),
            reply_bytes=reply_bytes,
            inflight=case.inflight,
            warm_up_s=pace.warm_up_s,
            seconds=pace.seconds,
            server_pid=bench.broker.pid,
            checks=checks,
        )
        measured = bench.driver.call(drive, load)
        appended = caller.end_offset(topic) - begin_offset
    if appended != (measured.requests_sent + 1) * batch.record_count:
        raise RuntimeError(f"{topic}: {appended} records appended, {measured.requests_sent + 1} batches acknowledged")
    return measured
