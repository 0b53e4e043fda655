"""One measurement: a new topic, clients in separate processes, and the cost for all processes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from ottla.bench.calls import RefusedError
from ottla.bench.processes import Worker, with_children
from ottla.bench.suite.drivers import DRIVERS, get_ready
from ottla.bench.suite.kafka_jars import kafka_libraries
from ottla.bench.suite.loads import ConsumerLoad, ConsumerResult, LoadFailedError, ProducerLoad, ProducerResult
from ottla.bench.suite.offsets import end_offsets
from ottla.bench.suite.read_progress import write_ends
from ottla.bench.suite.run_figures import consumed_figures, end_to_end_figures, produced_figures
from ottla.bench.suite.running_targets import RunningTarget
from ottla.bench.suite.sampler import Sampler
from ottla.bench.suite.settings import DEFAULTS, Configuration, count, number

LEAD_S = 0.5
"""The time between the command and the start, in which all clients connect."""
STORED_RECORD_BYTES = 1024
GROWING_S = 5.0
"""If the end of a log has not moved for this long, no more records are expected."""


class Measurement:
    """One measurement, to be used once."""

    def __init__(
        self,
        target: RunningTarget,
        configuration: Configuration,
        topic: str,
        warm_up_s: float,
        other_pids: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """`other_pids` returns the processes of brokers that run beside the target and are not measured."""
        self._target = target
        self._configuration = configuration
        self._topic = topic
        self._warm_up_s = warm_up_s
        self._other_pids = other_pids
        self._driver = DRIVERS[str(configuration["driver"])]
        self._libraries = str(kafka_libraries()) if self._driver.needs_jars else ""
        self._partitions = count(configuration, "topic.partitions")
        self._stack = ExitStack()
        self._all_workers: list[Worker] = []

    def run(self) -> dict[str, float]:
        """Returns the figures. Raises LoadFailedError if records were rejected or are missing."""
        self._target.create_topic(self._topic, self._configuration)
        with self._stack:
            self._stack.callback(self._delete_topic)
            try:
                return self._measure()
            except BaseException:
                for worker in self._all_workers:  # nobody waits for their calls
                    worker.kill()
                raise

    def _delete_topic(self) -> None:
        with suppress(OSError, RefusedError):  # if the brokers are gone, the topic is removed with their data
            self._target.delete_topic(self._topic)

    def _measure(self) -> dict[str, float]:
        producer_count, consumer_count = (
            count(self._configuration, name) for name in ("producer.clients", "consumers.clients")
        )
        threads = self._stack.enter_context(ThreadPoolExecutor(producer_count + consumer_count))
        producers, consumers = self._workers(producer_count), self._workers(consumer_count)
        self._store_first(producers[0])
        before = self._ends()
        groups: dict[str, Callable[[], Sequence[int]]] = {
            "brokers": self._target.pids,
            "clients": lambda: with_children(worker.pid for worker in producers),
            "others": self._other_pids,
        }
        reads_meanwhile = bool(consumers) and self._configuration["consumers.read"] == "tail"
        ends_file = Path(self._stack.enter_context(tempfile.TemporaryDirectory())) / "ends"
        with Sampler(groups) as sampler:
            start_at_ns = time.monotonic_ns() + int(LEAD_S * 1e9)
            early = consumers if reads_meanwhile else []
            reading = self._start_consumers(threads, early, before, None, start_at_ns, ends_file)
            produced = self._produce(threads, producers, start_at_ns)
            sent = sum(each.sent_in_all for each in produced)
            after = self._ends_with(sum(before.values()) + sent)
            write_ends(ends_file, after)
            consumed = [future.result() for future in reading]
            figures = produced_figures(produced, sampler)
        self._check(produced, sent, sum(after.values()) - sum(before.values()))
        if reads_meanwhile:
            begin_ns = min(each.begin_ns for each in produced)
            meanwhile = [each.since(begin_ns) for each in consumed]
            return figures | consumed_figures(meanwhile) | end_to_end_figures(consumed)
        return figures | (self._read_back(threads, consumers, after) if consumers else {})

    def _workers(self, how_many: int) -> list[Worker]:
        workers = [self._stack.enter_context(Worker()) for _ in range(how_many)]
        self._all_workers += workers
        for worker in workers:
            worker.call(get_ready, str(self._configuration["driver"]))
        return workers

    def _ends(self) -> dict[int, int]:
        return end_offsets(self._target.bootstrap, self._topic, self._partitions)

    def _ends_with(self, records: int) -> dict[int, int]:
        """Returns the end offsets once they cover `records`, or once they stop growing.

        Without acks=all, replication may complete later.
        """
        found, grown_at_s = self._ends(), time.monotonic()
        while sum(found.values()) < records and time.monotonic() < grown_at_s + GROWING_S:
            time.sleep(0.05)
            now = self._ends()
            if now != found:
                found, grown_at_s = now, time.monotonic()
        return found

    def _store_first(self, worker: Worker) -> None:
        """Writes the records that the topic holds before anything is measured."""
        stored_bytes = number(self._configuration, "topic.stored_mb") * 1e6
        if stored_bytes:
            records = int(stored_bytes / STORED_RECORD_BYTES)
            configuration = DEFAULTS | {"producer.records": records, "producer.record_bytes": STORED_RECORD_BYTES}
            load = ProducerLoad(self._target.bootstrap, self._topic, configuration, 0, 0.0, 0)
            worker.call(DRIVERS["librdkafka"].produce, load)

    def _produce(self, threads: ThreadPoolExecutor, workers: list[Worker], start_at_ns: int) -> list[ProducerResult]:
        loads = [
            ProducerLoad(
                self._target.bootstrap,
                self._topic,
                self._configuration,
                client,
                self._warm_up_s,
                start_at_ns,
                self._libraries,
            )
            for client in range(len(workers))
        ]
        futures = [
            threads.submit(worker.call, self._driver.produce, load) for worker, load in zip(workers, loads, strict=True)
        ]
        return [future.result() for future in futures]

    def _start_consumers(
        self,
        threads: ThreadPoolExecutor,
        workers: list[Worker],
        offsets: dict[int, int],
        ends: dict[int, int] | None,
        start_at_ns: int,
        ends_file: Path,
    ) -> list[Future[ConsumerResult]]:
        """Starts the consumers. Each reads every n-th partition."""
        measured_from_ns = start_at_ns + int(self._warm_up_s * 1e9) if ends is None else 0
        futures = []
        for at, worker in enumerate(workers):
            mine = range(at, self._partitions, len(workers))
            load = ConsumerLoad(
                self._target.bootstrap,
                self._topic,
                self._configuration,
                {index: offsets[index] for index in mine},
                start_at_ns,
                None if ends is None else {index: ends[index] for index in mine},
                str(ends_file),
                measured_from_ns,
                self._libraries,
            )
            futures.append(threads.submit(worker.call, self._driver.consume, load))
        return futures

    def _read_back(self, threads: ThreadPoolExecutor, workers: list[Worker], ends: dict[int, int]) -> dict[str, float]:
        """Reads the whole topic from its first record."""
        if self._configuration["consumers.read"] == "disk":
            self._target.drop_page_cache()
        with Sampler({"brokers": self._target.pids}) as sampler:
            start_at_ns = time.monotonic_ns() + int(LEAD_S * 1e9)
            first = dict.fromkeys(ends, 0)
            reading = self._start_consumers(threads, workers, first, ends, start_at_ns, Path())
            consumed = [future.result() for future in reading]
            return consumed_figures(consumed, sampler)

    def _check(self, produced: Sequence[ProducerResult], sent: int, stored: int) -> None:
        """Raises LoadFailedError if an acknowledged record is missing. With acks=0 nothing is guaranteed."""
        failures = [failure for each in produced for failure in each.failures]
        if failures:
            raise LoadFailedError(f"records were rejected: {failures[0]}")
        if stored < sent and self._configuration["producer.acks"] != 0:
            raise LoadFailedError(f"{sent - stored} of {sent} acknowledged records are not in the log")
