"""The cost of transactions by size: the record rate as a share of that of a plain idempotent producer.

The cost of a transaction is its end, whatever is in it: one request that is answered when the decision is durable, and
a marker in each partition. So the more records share an end, the less each of them costs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ottla.bench import transactional_load, transactions_librdkafka
from ottla.bench.latencies import median_percentiles
from ottla.bench.quotients import per, rate
from ottla.bench.results import Goal, Row
from ottla.bench.transactional_load import RECORD_BYTES, TransactionResult
from ottla.bench.workbench import Workbench

SIZES = (1, 10, 100, 1000, 10_000)
"""Records per transaction."""
PLAIN = 0
"""The size that means no transactions."""
MANY = 8
SECONDS, SECONDS_QUICK = 0.4, 0.1
REPETITIONS, REPETITIONS_QUICK = 2, 1
GOAL_SIZE, GOAL = 1000, 0.7
PATIENCE_S = 20.0
CONFIGS = {"segment.bytes": str(64 << 20), "retention.bytes": str(256 << 20), "retention.ms": "2500"}
"""A log in its steady state, as for `produce`."""

Drive = Callable[[str, int, str, int, int, float], TransactionResult]


@dataclass(frozen=True, slots=True)
class Subject:
    """A client to measure."""

    name: str
    producers: int
    drive: Drive


SUBJECTS = (
    Subject("1 producer", 1, transactional_load.drive),
    Subject(f"{MANY} producers", MANY, transactional_load.drive),
    Subject("librdkafka", 1, transactions_librdkafka.drive),
)


@dataclass(slots=True)
class Runs:
    """The measurements of one subject, by transaction size and repetition."""

    found: dict[int, list[TransactionResult]] = field(default_factory=lambda: {size: [] for size in (PLAIN, *SIZES)})

    def shares(self, size: int) -> list[float]:
        """Returns the record rate at this size as a share of the plain one, for each repetition."""
        plain, found = self.found[PLAIN], self.found[size]
        return [per(each.records_per_s, other.records_per_s) for each, other in zip(found, plain, strict=True)]


def estimate_s(seconds: float, repetitions: int) -> float:
    """Returns the estimated duration of `measure` in seconds."""
    return len(SUBJECTS) * (len(SIZES) + 1) * repetitions * _measurement_s(seconds) + 3.0


def _measurement_s(seconds: float) -> float:
    """Estimates a measurement, with the warm-up, the topic, and the transactions in flight when the time is over."""
    return seconds * (1 + transactional_load.WARM_UP) + 0.2


def measure(bench: Workbench, seconds: float, repetitions: int) -> list[Row]:
    """Measures all subjects and sizes in turns, once for each repetition."""
    runs = {subject.name: Runs() for subject in SUBJECTS}
    for _ in range(repetitions):
        for subject in SUBJECTS:
            for size, found in runs[subject.name].found.items():
                found.append(_run(bench, subject, size, seconds))
    return [_row(subject, size, runs[subject.name]) for size in (PLAIN, *SIZES) for subject in SUBJECTS]


def _run(bench: Workbench, subject: Subject, size: int, seconds: float) -> TransactionResult:
    topic = f"transactions-{size}-{subject.producers}"
    bench.advance(0, f"{case_of(size)}: {subject.name}")
    broker = bench.broker
    with bench.caller() as caller:
        caller.create_topics([topic], subject.producers, CONFIGS)
        measured = bench.driver.call(
            subject.drive, broker.bootstrap, broker.pid, topic, size, subject.producers, seconds
        )
        deadline = time.monotonic() + PATIENCE_S
        while (end := caller.end_offset(topic)) != measured.offsets_taken:  # the last marker may not be written yet
            if time.monotonic() > deadline:
                raise RuntimeError(f"{topic}: {measured.offsets_taken} offsets acknowledged, the log ends at {end}")
            time.sleep(0.01)
        caller.delete_topics([topic])
    bench.advance(_measurement_s(seconds), "")
    return measured


def case_of(size: int) -> str:
    """Returns a transaction size in words."""
    if size == PLAIN:
        return "plain idempotent"
    return f"{size:,} {'record' if size == 1 else 'records'} a transaction"


def _row(subject: Subject, size: int, runs: Runs) -> Row:
    found = runs.found[size]
    records_per_s = median(each.records_per_s for each in found)
    figures = {
        "mb_per_s": records_per_s * RECORD_BYTES / 1e6,
        "records_per_s": records_per_s,
        "share_of_plain": median(runs.shares(size)),
        "broker_busy": median(rate(each.broker_cpu_s, each.seconds) for each in found),
        "driver_busy": median(rate(each.driver_cpu_s, each.seconds) for each in found),
    }
    if size != PLAIN:
        figures |= _of_transactions(found)
    is_goal = size == GOAL_SIZE and subject.drive is transactional_load.drive
    goal = Goal("of plain", figures["share_of_plain"], GOAL) if is_goal else None
    return Row("transactions", case_of(size), subject.name, figures, goal)


def _of_transactions(found: Sequence[TransactionResult]) -> dict[str, float]:
    latencies = [each.latencies for each in found]
    return {
        "transactions_per_s": median(rate(_count(each.latencies), each.seconds) for each in found),
        "cpu_us_per_transaction": median(per(each.broker_cpu_s, _count(each.latencies)) * 1e6 for each in found),
        **median_percentiles(latencies)._asdict(),
    }


def _count(latencies: Counter[int]) -> int:
    return sum(latencies.values())
