"""The steps of the benchmark, in order, with their estimated durations."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ottla.bench import compaction, fetch, groups, produce, sizes, transactions
from ottla.bench import journal_group_commit as journal_alone
from ottla.bench import librdkafka_client as real_client
from ottla.bench.results import Row
from ottla.bench.workbench import Pace, Workbench

Measure = Callable[[], list[Row]]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the benchmark."""

    name: str
    estimate_s: float
    measure: Measure


def steps_for(bench: Workbench, *, quick: bool) -> list[Step]:
    """Returns every step. A quick run skips nothing, but measures everything only briefly."""
    pace = bench.pace
    client_s = 0.4 if quick else 1.5
    journal_s = 0.5 if quick else 1.0
    fetches = fetch.FetchBenchmark(bench, bench.one, fetch_pace(pace))
    fetched_cases = fetch.CASES[1::2]
    steps = [Step("start", sizes.ESTIMATE_START_S, lambda: sizes.measure_start(bench))]
    steps += [
        Step(
            f"produce {case.name}",
            produce.estimate_s(pace),
            lambda case=case: produce.measure(bench, case, bench.one, pace),  # type: ignore[misc] # mypy does not see the default
        )
        for case in produce.CASES
    ]
    steps += [
        Step(f"fetch {case.name}", fetch.estimate_hot_s(fetches.pace), lambda case=case: fetches.hot(case))  # type: ignore[misc] # as above
        for case in fetch.CASES
    ]
    steps.append(
        Step(
            "fetch after a restart",
            fetch.estimate_restarted_s(fetches.pace, len(fetched_cases)),
            lambda: fetches.restarted(fetched_cases),
        )
    )
    steps += [
        Step(
            f"librdkafka {name}",
            3 * real_client.estimate_s(client_s),
            lambda name=name, size=size: real_client.measure(bench, name, size, client_s),  # type: ignore[misc] # as above
        )
        for name, size in real_client.RECORD_SIZES
    ]
    estimate_s = journal_alone.estimate_s(journal_s, pace.repetitions)
    steps.append(Step("journal", estimate_s, lambda: journal_alone.measure(bench, journal_s)))
    count = sizes.TOPICS_QUICK if quick else sizes.TOPICS
    steps.append(Step("topics", sizes.estimate_topics_s(count), lambda: sizes.measure_topics(bench, count)))
    size_bytes = compaction.SIZE_BYTES_QUICK if quick else compaction.SIZE_BYTES
    steps.append(Step("compaction", compaction.estimate_s(size_bytes), lambda: compaction.measure(bench, size_bytes)))
    group_s = groups.SECONDS_QUICK if quick else groups.SECONDS
    steps.append(Step("groups", groups.estimate_s(group_s), lambda: groups.measure(bench, group_s)))
    steps.append(transactions_step(bench, quick=quick))
    return steps + replicated_steps(bench)


def transactions_step(bench: Workbench, *, quick: bool) -> Step:
    """Returns the step that measures transactions."""
    seconds = transactions.SECONDS_QUICK if quick else transactions.SECONDS
    repetitions = transactions.REPETITIONS_QUICK if quick else transactions.REPETITIONS
    estimate_s = transactions.estimate_s(seconds, repetitions)
    return Step("transactions", estimate_s, lambda: transactions.measure(bench, seconds, repetitions))


def replicated_steps(bench: Workbench) -> list[Step]:
    """Steps on three brokers: three replicas, acks=all, min.insync.replicas=2."""
    pace = replace(bench.pace, repetitions=min(bench.pace.repetitions, 2))
    steps = [
        Step(
            f"three brokers, produce {case.name}",
            produce.estimate_s(pace, produce.REPLICATED_FLOORS),
            lambda case=case: produce.measure(bench, case, bench.three, pace),  # type: ignore[misc] # as above
        )
        for case in produce.REPLICATED_CASES
    ]
    reading_pace = fetch_pace(pace)
    steps += [
        Step(
            f"three brokers, fetch {case.name}",
            fetch.estimate_hot_s(reading_pace),
            lambda case=case: fetch.FetchBenchmark(bench, bench.three, reading_pace).hot(case),  # type: ignore[misc] # as above
        )
        for case in fetch.CASES[:3]
    ]
    return steps


def fetch_pace(pace: Pace) -> Pace:
    """Returns a shorter pace for reads, which settle faster than writes: no file grows, and no retention runs."""
    repetitions = min(pace.repetitions, 2)
    return replace(pace, warm_up_s=pace.warm_up_s * 0.6, seconds=pace.seconds * 0.7, repetitions=repetitions)


def chosen(steps: list[Step], pattern: str | None) -> list[Step]:
    """Returns the steps whose names match the regular expression."""
    return [step for step in steps if pattern is None or re.search(pattern, step.name)]
