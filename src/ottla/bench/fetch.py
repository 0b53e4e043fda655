"""Fetches from the leader: from its tail cache, and after a restart, when only the files have the records.

Each request asks for at most 1 MB of one partition, and the next request for what follows, from the first offset to the
last and over again. The floor answers each request with the same number of bytes from memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.bench.calls import Caller
from ottla.bench.floor import Exchange
from ottla.bench.frames import (
    FETCH_BYTES,
    PreparedBatch,
    fetch_error_at,
    fetch_frame,
    prepare_batch,
    produce_frame,
    size_checks,
)
from ottla.bench.pipeline import Load, LoadResult, drive
from ottla.bench.produce import KB
from ottla.bench.results import Row
from ottla.bench.targets import Target
from ottla.bench.throughput import FLOOR, Content, figures_of
from ottla.bench.workbench import CLASSES, Pace, Workbench

TOPIC_BYTES = 12 * KB * KB
"""The size of the topic of each durability class; two of them fit into a tail cache of the default size."""
INFLIGHT = 2
"""The broker prepares the next reply while the reader receives one."""
FILL_INFLIGHT = 16
FILL_S = 0.6
RESTART_S = 2.0


@dataclass(frozen=True, slots=True)
class FetchCase:
    """One shape of records and batches."""

    name: str
    record_bytes: int
    batch_bytes_max: int


CASES = (
    FetchCase("100 B, 16 KB batches", 100, 16 * KB),
    FetchCase("1 KB, 16 KB batches", KB, 16 * KB),
    FetchCase("10 KB, one a batch", 10 * KB, 16 * KB),
    FetchCase("1 KB, 128 KB batches", KB, 128 * KB),
)
FROM_FILES = ("cache", "disk")


@dataclass(slots=True)
class FilledTopic:
    """A topic that holds copies of one batch."""

    name: str
    batch: PreparedBatch
    batches: int = 0

    @property
    def batches_a_reply(self) -> int:
        """The number of batches that fit into a reply, at least one."""
        return max(FETCH_BYTES // len(self.batch.data), 1)

    @property
    def content(self) -> Content:
        """The values and records of one reply."""
        count = self.batches_a_reply
        return Content(count * self.batch.value_bytes, count * self.batch.record_count)

    def requests(self) -> list[bytes]:
        """Returns one request for each full reply that the topic can give."""
        step = self.batches_a_reply * self.batch.record_count
        return [fetch_frame(self.name, number * step) for number in range(self.batches // self.batches_a_reply)]


@dataclass(slots=True)
class FetchBenchmark:
    """Measures fetches. Its topics survive a restart of the broker."""

    bench: Workbench
    target: Target
    pace: Pace
    topics: dict[tuple[FetchCase, str], FilledTopic] = field(default_factory=dict)

    def hot(self, case: FetchCase) -> list[Row]:
        """Measures fetches from the tail cache."""
        topics = {durability: self._filled(case, durability) for durability in CLASSES}
        rows = self._compare(case.name, "tail cache", topics)
        self.target.delete([topics["memory"].name])
        del self.topics[case, "memory"]
        return rows

    def restarted(self, cases: tuple[FetchCase, ...]) -> list[Row]:
        """Measures fetches after a restart: the broker's memory is empty then, but the kernel's page cache is not."""
        bench = self.bench
        for case in cases:
            for durability in FROM_FILES:
                self._filled(case, durability)
        bench.advance(0, "fetch: restart")
        bench.broker.stop()
        bench.broker.start()
        bench.advance(RESTART_S, "")
        rows: list[Row] = []
        for case in cases:
            topics = {durability: self.topics[case, durability] for durability in FROM_FILES}
            rows += self._compare(case.name, "page cache", topics)
        return rows

    def _filled(self, case: FetchCase, durability: str) -> FilledTopic:
        bench = self.bench
        found = self.topics.get((case, durability))
        if found is not None:
            return found
        bench.advance(0, f"fetch {case.name}: filling {durability}")
        name = f"fetch-{len(self.topics)}-{case.batch_bytes_max}-{case.record_bytes}-{durability}"
        batch = prepare_batch(case.record_bytes, case.batch_bytes_max, bench.timestamp_ms)
        topic = self.topics[case, durability] = FilledTopic(name, batch, TOPIC_BYTES // len(batch.data))
        self.target.create([name], {"ottla.durability": durability})
        with self.target.caller(name) as caller:
            fill(caller, topic)
        bench.advance(FILL_S, "")
        return topic

    def _compare(self, name: str, place: str, topics: dict[str, FilledTopic]) -> list[Row]:
        bench = self.bench
        runs: dict[str, list[LoadResult]] = {FLOOR: [], **{durability: [] for durability in topics}}
        for _ in range(self.pace.repetitions):
            for subject, found in runs.items():
                bench.advance(0, f"{self.target.prefix}fetch {name}, {place}: {subject}")
                topic = next(iter(topics.values())) if subject == FLOOR else topics[subject]
                found.append(self._run_on_floor(topic) if subject == FLOOR else self._run_on_broker(topic))
                bench.advance(self.pace.measurement_s, "")
        content = next(iter(topics.values())).content
        case = f"{name}, {place}"
        group = f"{self.target.prefix}fetch"
        return [Row(group, case, subject, figures_of(content, found, runs[FLOOR])) for subject, found in runs.items()]

    def _run_on_broker(self, topic: FilledTopic) -> LoadResult:
        requests = topic.requests()
        with self.target.caller(topic.name) as caller:
            reply_bytes = len(caller.exchange(requests[0]))
        checks = (*size_checks(reply_bytes), (fetch_error_at(topic.name), 0))
        port = self.target.leader(topic.name).port
        return self._drive(requests, reply_bytes, port, self.target.pids(), checks)

    def _run_on_floor(self, topic: FilledTopic) -> LoadResult:
        floor = self.bench.floor
        requests = topic.requests()
        reply_bytes = topic.batches_a_reply * len(topic.batch.data)
        floor.expect(Exchange(len(requests[0]), reply_bytes, writes=False))
        return self._drive(requests, reply_bytes, floor.port, (floor.pid,), ())

    def _drive(
        self,
        requests: list[bytes],
        reply_bytes: int,
        port: int,
        pids: tuple[int, ...],
        checks: tuple[tuple[int, int], ...],
    ) -> LoadResult:
        pace = self.pace
        load = Load(
            port=port,
            requests=b"".join(requests),
            request_bytes=len(requests[0]),
            reply_bytes=reply_bytes,
            inflight=INFLIGHT,
            warm_up_s=pace.warm_up_s,
            seconds=pace.seconds,
            server_pids=pids,
            checks=checks,
        )
        return self.bench.driver.call(drive, load)


def fill(caller: Caller, topic: FilledTopic) -> None:
    """Writes exactly `topic.batches` batches. A reader stays at the first one, so that the tail cache keeps them."""
    frame, read = produce_frame(topic.name, topic.batch), fetch_frame(topic.name, 0)
    left = topic.batches
    while left:
        count = min(left, FILL_INFLIGHT)
        caller.exchange_many(frame, count)
        caller.exchange(read)
        left -= count
    expected = topic.batches * topic.batch.record_count
    if caller.end_offset(topic.name) != expected:
        raise RuntimeError(f"{topic.name} does not end at offset {expected}")


def estimate_hot_s(pace: Pace) -> float:
    """Returns the estimated duration of the fetches from the tail cache, in seconds."""
    return pace.repetitions * (1 + len(CLASSES)) * pace.measurement_s + len(CLASSES) * FILL_S


def estimate_restarted_s(pace: Pace, cases: int) -> float:
    """Returns the estimated duration of the fetches after a restart, in seconds."""
    return cases * pace.repetitions * (1 + len(FROM_FILES)) * pace.measurement_s + RESTART_S
