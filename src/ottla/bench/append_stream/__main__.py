"""Appends per second and latencies of the append stream, of librdkafka on the same brokers, and of the two floors.

    python -m ottla.bench.append_stream [--seconds 2] [--rounds 3] [--brokers 1 3] [--kafka] [--json FILE]

The subjects take turns in every round, so that other work on the machine slows all of them alike. With --kafka, Apache
Kafka is measured too; its use of the page cache corresponds to `cache` here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from ottla.bench.append_stream.drivers import AppendResult, Case, append_stream, librdkafka
from ottla.bench.append_stream.floors import echo_latencies_s, echo_server, sync_latencies_s
from ottla.bench.quotients import ratio, times_text
from ottla.testing.cluster_processes import ClusterProcesses

FLOOR_COUNT = 500
HEAP_MB = 512


class Bench:
    """Measures every case and collects the results."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._options = options
        self._directory = directory
        self.rows: dict[tuple[str, Case | None], AppendResult] = {}

    def run(self) -> None:
        """Starts the clusters, then measures the floors and every case in each round; rounds are interleaved."""
        with ExitStack() as ends:
            echo = ends.enter_context(echo_server())
            clusters = {
                count: ends.enter_context(
                    ClusterProcesses(
                        self._directory / f"ottla-{count}", count, config={"ottla.wal.port": "0"}, ready_timeout_s=120
                    )
                )
                for count in self._options.brokers
            }
            kafka = ends.enter_context(self._kafka()) if self._options.kafka else None
            for number in range(self._options.rounds):
                self._floors(echo)
                for case in self._cases():
                    print(f"round {number + 1}: {describe(case)}", file=sys.stderr)
                    self._measure(case, clusters[case.replicas], kafka)

    def _kafka(self) -> Any:
        from ottla.bench.suite.kafka_cluster import KafkaCluster

        return KafkaCluster(self._directory / "kafka", max(self._options.brokers), heap_mb=HEAP_MB, config={})

    def _cases(self) -> list[Case]:
        options = self._options
        chosen = product(options.brokers, options.durability, options.acks, options.bytes, options.in_flight)
        return [
            Case(durability, acks, size, in_flight, brokers)
            for brokers, durability, acks, size, in_flight in chosen
            if brokers > 1 or acks == "all"  # with one broker, both are the same
        ]

    def _floors(self, echo: str) -> None:
        for size in self._options.bytes:
            latencies = asyncio.run(echo_latencies_s(echo, size, FLOOR_COUNT))
            self._note(f"bare gRPC echo, {size} B", None, AppendResult(latencies, sum(latencies)))
        latencies = sync_latencies_s(self._directory, FLOOR_COUNT)
        self._note("bare sync of the device", None, AppendResult(latencies, sum(latencies)))

    def _measure(self, case: Case, cluster: ClusterProcesses, kafka: Any) -> None:
        seconds = self._options.seconds
        servers = ",".join(broker.wal_server for broker in cluster.brokers)
        # The name includes the number of replicas: one Apache Kafka serves all cases, and a topic keeps the replicas
        # that it was created with.
        topic = f"{case.replicas}-{case.durability}-{case.acks}-{case.size_bytes}-{case.in_flight}"
        self._note("append stream", case, run(append_stream(servers, f"wal-{topic}", case, seconds)))
        self._note("librdkafka", case, librdkafka(cluster.bootstrap, f"kafka-{topic}", case, seconds))
        if kafka is not None and case.durability != "disk":
            self._note("Apache Kafka, librdkafka", case, librdkafka(kafka.bootstrap, topic, case, seconds, configs={}))

    def _note(self, name: str, case: Case | None, measured: AppendResult) -> None:
        self.rows.setdefault((name, case), AppendResult()).add(measured)


def run(driving: Any) -> Any:
    """Runs a coroutine on uvloop and returns its result."""
    import uvloop

    return uvloop.run(driving)


def describe(case: Case | None) -> str:
    """Returns a case in words; empty for a floor, which has none."""
    if case is None:
        return ""
    return f"{case.replicas} x {case.durability}, acks {case.acks}, {case.size_bytes} B, {case.in_flight} in flight"


def print_table(rows: dict[tuple[str, Case | None], AppendResult]) -> None:
    """Prints a line for each case and subject."""
    print(f"{'case':52} {'who':26} {'appends/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'p99.9 ms':>9}")
    for (name, case), found in sorted(rows.items(), key=lambda each: (describe(each[0][1]), each[0][0])):
        figures = f"{found.rate:10,.0f} {found.at(50):8.3f} {found.at(99):8.3f} {found.at(99.9):9.3f}"
        print(f"{describe(case):52} {name:26} {figures}")


def print_goals(rows: dict[tuple[str, Case | None], AppendResult]) -> None:
    """Prints the goals.

    One is one append in flight at `disk` on one broker, against a bare echo plus a bare sync. The other is `memory` on
    three brokers, against Apache Kafka's producer when it waits for each record.
    """
    sync = rows["bare sync of the device", None].at(50)
    for (name, case), found in rows.items():
        if name == "append stream" and case is not None and case.durability == "disk" and case.in_flight == 1:
            floor = rows[f"bare gRPC echo, {case.size_bytes} B", None].at(50) + sync
            times = times_text(ratio(found.at(50), floor))
            print(f"{describe(case)}: {found.at(50):.3f} ms, {times} x echo + sync ({floor:.3f} ms)")
    for (name, case), found in rows.items():
        if name != "append stream" or case is None or (case.durability, case.replicas) != ("memory", 3):
            continue
        waiting = rows.get(("Apache Kafka, librdkafka", replace(case, in_flight=1)))
        if waiting is not None:
            times = f"{times_text(ratio(found.rate, waiting.rate))} x Apache Kafka's sync producer"
            print(f"{describe(case)}: {found.rate:,.0f}/s, {times} ({waiting.rate:,.0f}/s)")


def parse_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each measurement in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 3], help="number of brokers, and of replicas")
    parser.add_argument("--durability", nargs="+", default=["memory", "cache", "disk"])
    parser.add_argument("--acks", nargs="+", default=["leader", "all"], choices=["leader", "all"])
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 1024])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 1000])
    parser.add_argument("--kafka", action="store_true", help="also measure Apache Kafka, which needs Java and Maven")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, one per line")
    parser.add_argument("--directory", type=Path, help="a directory on the disk to measure")
    return parser.parse_args()


def main() -> int:
    """Runs the benchmark, prints the tables and writes the JSON lines if asked to. Returns the exit code."""
    options = parse_options()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        bench = Bench(options, Path(directory))
        bench.run()
    print_table(bench.rows)
    print_goals(bench.rows)
    if options.json is not None:
        lines = [
            {
                "who": name,
                **(asdict(case) if case is not None else {}),
                "rate": found.rate,
                "mean_ms": statistics.fmean(found.latencies_s) * 1000,
                **{f"p{percent}_ms": found.at(percent) for percent in (50, 99, 99.9)},
            }
            for (name, case), found in bench.rows.items()
        ]
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
