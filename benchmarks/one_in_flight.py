"""The cost of one record to a cluster when the producer waits for each: three broker processes, librdkafka.

    python benchmarks/one_in_flight.py [--acks 1 all] [--seconds 6] [--durability cache] [--partitions 1]
        [--quiet-partitions 0]

Prints requests per second, latencies, and the CPU time per record of the leader and of each follower. Compare only
figures measured at the same time of day on the same machine: run it in two work trees in turn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.processes import cpu_seconds_in_ticks
from ottla.bench.quotients import per, rate
from ottla.testing.cluster_processes import ClusterProcesses

TOPIC = "records"
VALUE = b"x" * 1024
WARM_UP_COUNT = 300


def main() -> None:
    arguments = parse_arguments()
    for acks in arguments.acks:
        measure(acks, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acks", nargs="+", default=["1", "all"], choices=["1", "all"])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--durability", default="cache", choices=["memory", "cache", "disk"])
    parser.add_argument(
        "--partitions",
        type=int,
        default=1,
        help="number of partitions written to in turn; each has its own leader, up to 3",
    )
    parser.add_argument("--quiet-partitions", type=int, default=0, help="number of other, idle partitions")
    return parser.parse_args()


def measure(acks: str, arguments: argparse.Namespace) -> None:
    partitions, config = arguments.partitions, {"ottla.durability": arguments.durability}
    with tempfile.TemporaryDirectory() as directory, ClusterProcesses(Path(directory), 3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, partitions, 3, config=config)])[TOPIC].result()
        if arguments.quiet_partitions:
            admin.create_topics([NewTopic("quiet", arguments.quiet_partitions, 3)])["quiet"].result()
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks, "linger.ms": 0})
        for number in range(WARM_UP_COUNT):
            write_one(producer, number % partitions)
        leader = admin.list_topics(TOPIC).topics[TOPIC].partitions[0].leader
        pids = {number: cluster.broker(number).pid for number in (1, 2, 3)}
        before = {number: cpu_seconds_in_ticks(pid) for number, pid in pids.items()}
        began_s, latencies_s = time.monotonic(), list[float]()
        while time.monotonic() - began_s < arguments.seconds:
            latencies_s.append(write_one(producer, len(latencies_s) % partitions))
        took_s = time.monotonic() - began_s
        spent_s = {number: cpu_seconds_in_ticks(pid) - before[number] for number, pid in pids.items()}
        print_row(acks, took_s, latencies_s, spent_s, leader)


def write_one(producer: Producer, partition: int) -> float:
    began_s = time.perf_counter()
    producer.produce(TOPIC, VALUE, partition=partition)
    producer.flush()
    return time.perf_counter() - began_s


def print_row(acks: str, took_s: float, latencies_s: list[float], spent_s: dict[int, float], leader: int) -> None:
    count = len(latencies_s)
    ordered_ms = [each * 1000 for each in sorted(latencies_s)]
    costs = [
        f"{'leader' if number == leader else 'follower'} {per(spent_s[number], count) * 1e6:.0f}" for number in spent_s
    ]
    print(
        f"acks={acks:3}  {rate(count, took_s):6,.0f} requests/s  p50 {ordered_ms[count // 2]:.2f} ms  "
        f"p99 {ordered_ms[count * 99 // 100]:.2f} ms  CPU us a record: {', '.join(costs)}"
    )


if __name__ == "__main__":
    main()
