"""Measures one configuration on its own cluster: first the peak, then each load."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from ottla.bench.leaders import any_broker, ask_leaders, wait_until_in_sync
from ottla.bench.processes import Worker, resident_bytes
from ottla.bench.saturation.in_sync import InSyncWatch
from ottla.bench.saturation.plan import BURST, BURST_RECORDS, PEAK, Configuration, Load
from ottla.bench.saturation.probe import ProbeResult, ProbeSettings, probe
from ottla.bench.saturation.producers import Offer, OfferResult, offer_records, queue_settings
from ottla.bench.saturation.rendezvous import Rendezvous
from ottla.bench.saturation.summary import SaturationResult
from ottla.bench.suite.offsets import end_offsets
from ottla.testing.cluster_processes import ClusterProcesses

TOPIC = "load"
PROBE_TOPIC = "probe"
SEGMENT_BYTES_MIN = 2 << 20
LOG_BYTES = 64 << 20
"""Retention of the whole topic; each partition keeps its newest segment as well."""
BROKER_SETTINGS = {"log.retention.check.interval.ms": "500"}
BROKERS = 3
REPLICAS = 3
MIN_IN_SYNC = 2
READY_S = 120.0
PEAK_WINDOWS_BYTES = (4 << 20, 16 << 20)
"""Unacknowledged bytes of all producers together. The better of the two measurements is the peak."""
BURST_QUEUE_BYTES = 2 << 30
IN_FLIGHT_MAX = 1_000_000
OFFSETS_TIMEOUT_S = 20.0
MEMORY_EVERY_S = 0.2
TIMESTAMP_AHEAD_MS = 1_800_000


@dataclass(frozen=True, slots=True)
class Terms:
    """The parameters that all configurations share."""

    seconds: float
    durability: str
    producers: int
    queue_bytes: int
    """The bound of each producer's queue."""
    wait_s: float


class Generators:
    """The processes of the load generators and of the probe, which all rows share."""

    def __init__(self, producers: int) -> None:
        self.producers = [Worker() for _ in range(producers)]
        self.probe = Worker()

    def kill(self) -> None:
        """Kills the processes. Calls in progress end with an error, and no further call is possible."""
        for worker in (*self.producers, self.probe):
            worker.kill()

    def close(self) -> None:
        """Ends all processes."""
        for worker in (*self.producers, self.probe):
            worker.close()


class Experiment:
    """Measures one configuration on a new cluster."""

    def __init__(
        self,
        configuration: Configuration,
        terms: Terms,
        cluster: ClusterProcesses,
        generators: Generators,
        scratch: Path,
    ) -> None:
        self._configuration = configuration
        self._terms = terms
        self._cluster = cluster
        self._generators = generators
        self._scratch = scratch
        self._written = 0

    def prepare(self) -> None:
        """Creates the topics."""
        segment_bytes = max(SEGMENT_BYTES_MIN, LOG_BYTES // self._configuration.partitions)
        # Recycle old segments, and with them their pages in the page cache: in a virtual machine, the first touch of a
        # page that was given back to the host costs more than the broker does, and this cost grows with the data
        # written so far.
        settings = {
            "ottla.durability": self._terms.durability,
            "min.insync.replicas": str(MIN_IN_SYNC),
            "segment.bytes": str(segment_bytes),
            "retention.bytes": str(segment_bytes),
        }
        with any_broker(self._cluster.bootstrap) as caller:
            caller.create_topics([TOPIC], self._configuration.partitions, settings, replicas=REPLICAS)
            caller.create_topics([PROBE_TOPIC], BROKERS, settings, replicas=REPLICAS)
        for topic in (TOPIC, PROBE_TOPIC):
            wait_until_in_sync(self._cluster.bootstrap, topic, REPLICAS)

    def measure(self, on_row: Callable[[SaturationResult], None]) -> list[SaturationResult]:
        """Measures all loads in order, as long as the brokers answer. Calls `on_row` after each."""
        found: list[SaturationResult] = []
        peak = 0.0
        for load in self._configuration.loads:
            if load.name == PEAK:
                closed_loops = [self._measure(load, 0.0, window) for window in PEAK_WINDOWS_BYTES]
                row = max(closed_loops, key=lambda each: each.records_per_s)
                peak = row.records_per_s
            else:
                row = self._measure(load, peak)
            found.append(row)
            on_row(row)
            if row.written is None or row.ended_brokers:
                break
        return found

    def _measure(self, load: Load, peak: float, window_bytes: int = 0) -> SaturationResult:
        with tempfile.TemporaryDirectory(dir=self._scratch) as directory:
            meeting = Rendezvous(Path(directory))
            probing = self._probing(meeting)
            offers = self._offers(load, peak, window_bytes, meeting)
            results, probed, shrinks, memory_bytes = self._run(meeting, probing, offers)
        return SaturationResult(
            self._configuration,
            load,
            measured_seconds(load, results),
            results,
            self._written_since(),
            shrinks,
            probed,
            memory_bytes,
            sum(not broker.running for broker in self._cluster.brokers),
        )

    def _run(
        self, meeting: Rendezvous, probing: ProbeSettings, offers: Sequence[Offer]
    ) -> tuple[list[OfferResult], ProbeResult, int, int]:
        """Returns the reports of producers and probe, the number of ISR shrinks, and the largest broker's memory."""
        memory_bytes = 0
        with ThreadPoolExecutor(len(offers) + 1) as threads:
            probed = threads.submit(self._generators.probe.call, probe, probing)
            calls = [
                threads.submit(worker.call, offer_records, offer)
                for worker, offer in zip(self._generators.producers, offers, strict=False)
            ]
            try:
                meeting.begin(len(calls) + 1, lambda: probed.done() or any(call.done() for call in calls))
                with InSyncWatch(self._cluster.bootstrap, [TOPIC, PROBE_TOPIC]) as watch:
                    while wait(calls, timeout=MEMORY_EVERY_S).not_done:
                        memory_bytes = max(memory_bytes, self._memory_bytes())
            except KeyboardInterrupt:
                self._generators.kill()
                raise
            finally:
                meeting.end()
            return [call.result() for call in calls], probed.result(), watch.shrinks, memory_bytes

    def _offers(self, load: Load, peak: float, window_bytes: int, meeting: Rendezvous) -> list[Offer]:
        terms, configuration = self._terms, self._configuration
        if load.name == BURST:
            settings = {
                **queue_settings(BURST_QUEUE_BYTES),
                "max.in.flight.requests.per.connection": IN_FLIGHT_MAX,
            }
            return [self._offer(meeting, 0, 0.0, settings, records_max=BURST_RECORDS)]
        count = terms.producers
        if load.name == PEAK:
            settings = queue_settings(max(window_bytes // count, 2 * configuration.record_bytes))
            return [self._offer(meeting, at, terms.seconds, settings) for at in range(count)]
        settings = queue_settings(terms.queue_bytes)
        rate = max(load.factor * peak / count, 1.0)
        return [self._offer(meeting, at, terms.seconds, settings, rate=rate) for at in range(count)]

    def _offer(
        self,
        meeting: Rendezvous,
        number: int,
        seconds: float,
        settings: dict[str, object],
        *,
        rate: float = 0.0,
        records_max: int = 0,
    ) -> Offer:
        return Offer(
            bootstrap=self._cluster.bootstrap,
            topic=TOPIC,
            record_bytes=self._configuration.record_bytes,
            is_idempotent=self._configuration.is_idempotent,
            seconds=seconds,
            rate=rate,
            records_max=records_max,
            partitions=self._configuration.partitions,
            name=f"producer-{number}",
            meeting=meeting,
            settings=settings,
            wait_s=self._terms.wait_s,
        )

    def _probing(self, meeting: Rendezvous) -> ProbeSettings:
        with any_broker(self._cluster.bootstrap) as caller:
            found = ask_leaders(caller, [PROBE_TOPIC])
        leaders = {partition: found.addresses[led.leader] for (_, partition), led in found.partitions.items()}
        timestamp_ms = int(time.time() * 1000) + TIMESTAMP_AHEAD_MS
        return ProbeSettings(list(found.addresses.values()), PROBE_TOPIC, leaders, timestamp_ms, meeting)

    def _memory_bytes(self) -> int:
        """Returns the memory of the largest broker."""
        return max((resident_bytes(broker.pid) for broker in self._cluster.brokers if broker.running), default=0)

    def _written_since(self) -> int | None:
        """Returns how much the end offsets have grown since the last row, or None if the leaders do not answer."""
        try:
            offsets = end_offsets(self._cluster.bootstrap, TOPIC, self._configuration.partitions, OFFSETS_TIMEOUT_S)
        except Exception:
            return None
        written = sum(offsets.values())
        grown, self._written = written - self._written, written
        return grown


def measured_seconds(load: Load, results: Sequence[OfferResult]) -> float:
    """Returns the measured time: until the last record is resolved for a peak or a burst, else while it is offered."""
    if load.name in (PEAK, BURST):
        return max(result.last_acknowledged_s for result in results)
    return max(result.offered_s for result in results)


def measure_configuration(
    configuration: Configuration,
    terms: Terms,
    generators: Generators,
    directory: Path,
    on_row: Callable[[SaturationResult], None],
) -> list[SaturationResult]:
    """Measures a configuration on three new brokers, which are killed afterwards."""
    arguments = ["--log-level", "warning"]
    with ClusterProcesses(
        directory / "cluster", BROKERS, config=BROKER_SETTINGS, arguments=arguments, ready_timeout_s=READY_S
    ) as cluster:
        experiment = Experiment(configuration, terms, cluster, generators, directory)
        experiment.prepare()
        return experiment.measure(on_row)
