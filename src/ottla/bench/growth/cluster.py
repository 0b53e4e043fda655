"""A cluster with one topic in use and any number of partitions and connections that are idle."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ottla.bench.calls import Caller
from ottla.bench.frames import (
    ACKS_ALL,
    CLIENT_ID,
    PRODUCE,
    PRODUCE_VERSION,
    TIMEOUT_MS,
    PreparedBatch,
    framed,
    prepare_batch,
    produce_error_at,
    produce_frame,
)
from ottla.bench.leaders import Leaders, ask_leaders
from ottla.net.apis import API_VERSIONS
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.produce import encode_produce_request
from ottla.testing.cluster_processes import ClusterProcesses

BUSY = "busy"
BUSY_PARTITIONS = 6
TOPIC_PARTITIONS = 50
"""The number of partitions of an idle topic."""
REPLICAS = 3
CREATED_AT_ONCE = 10
WAIT_S = 180.0
LOOK_S = 0.01
IDLE_RECORD_BYTES = 100


def idle_topics(partitions: int) -> dict[str, int]:
    """Returns the names and sizes of the idle topics that bring the total to this number of partitions."""
    left, found = partitions - BUSY_PARTITIONS, dict[str, int]()
    while left > 0:
        found[f"idle-{len(found)}"] = min(left, TOPIC_PARTITIONS)
        left -= TOPIC_PARTITIONS
    return found


class GrownCluster:
    """Three brokers with `partitions` partitions of three replicas each, all but six of them idle."""

    def __init__(self, directory: Path, partitions: int) -> None:
        self.partitions = partitions
        self.idle = idle_topics(partitions)
        self.processes = ClusterProcesses(directory, arguments=["--log-level", "warning"], ready_timeout_s=WAIT_S)
        self._batch = prepare_batch(IDLE_RECORD_BYTES, IDLE_RECORD_BYTES, int(time.time() * 1000))

    @property
    def topics(self) -> dict[str, int]:
        """The names and sizes of all topics."""
        return {BUSY: BUSY_PARTITIONS, **self.idle}

    def fill(self) -> None:
        """Creates the topics and writes one record to each partition."""
        names = list(self.idle)
        with Caller(self.processes.broker(1).port, timeout_s=WAIT_S) as caller:
            configs = {"min.insync.replicas": "2"}
            caller.create_topics([BUSY], BUSY_PARTITIONS, configs, replicas=REPLICAS)
            for size in sorted(set(self.idle.values())):
                sized = [name for name in names if self.idle[name] == size]
                for at in range(0, len(sized), CREATED_AT_ONCE):
                    caller.create_topics(sized[at : at + CREATED_AT_ONCE], size, configs, replicas=REPLICAS)
        self.wait_until_led()
        for name in self.topics:
            self._write_one_each(name)
        self.wait_until_led(in_sync=REPLICAS)

    def _write_one_each(self, topic: str) -> None:
        with self.any_broker() as caller:
            leaders = ask_leaders(caller, [topic])
        for node, port in sorted((node, address[1]) for node, address in leaders.addresses.items()):
            led = [index for (_, index), found in leaders.partitions.items() if found.leader == node]
            if led:
                with Caller(port) as caller:
                    caller.exchange(_frame_of_many(topic, led, self._batch))

    def wait_until_led(self, *, in_sync: int = 0, by: Sequence[int] = (1, 2, 3)) -> float:
        """Waits until each partition has a leader among these brokers and this many replicas in sync. Returns the
        moment. Asks for one topic at a time, so that asking costs the brokers little."""
        deadline = time.perf_counter() + WAIT_S
        with Caller(self.processes.broker(by[0]).port, timeout_s=WAIT_S) as caller:
            for topic, count in self.topics.items():
                while not _is_led(ask_leaders(caller, [topic]), topic, count, in_sync, by):
                    if time.perf_counter() > deadline:
                        raise TimeoutError(f"{topic} did not get {in_sync} replicas in sync and a leader of {by}")
                    time.sleep(LOOK_S)
        return time.perf_counter()

    @contextmanager
    def any_broker(self) -> Iterator[Caller]:
        """Connects to a broker that runs."""
        running = next(broker for broker in self.processes.brokers if broker.running)
        with Caller(running.port, timeout_s=WAIT_S) as caller:
            yield caller

    def leader_of_busy(self) -> int:
        """Returns the broker that leads the first partition of the busy topic."""
        with self.any_broker() as caller:
            return ask_leaders(caller, [BUSY]).partitions[BUSY, 0].leader

    def first_write(self, since: float) -> float:
        """Writes to the busy topic until a broker acknowledges it with acks=all. Returns the seconds since then."""
        frame, error_at = produce_frame(BUSY, self._batch), produce_error_at(BUSY)
        while time.perf_counter() < since + WAIT_S:
            for broker in self.processes.brokers:
                try:
                    with Caller(broker.port, timeout_s=WAIT_S) as caller:
                        if caller.exchange(frame)[error_at] == 0:
                            return time.perf_counter() - since
                except OSError:
                    continue
            time.sleep(LOOK_S)
        raise TimeoutError("no broker acknowledged a write")


def _is_led(found: Leaders, topic: str, count: int, in_sync: int, by: Sequence[int]) -> bool:
    led = [partition for (name, _), partition in found.partitions.items() if name == topic]
    return len(led) == count and all(
        each.leader in by and each.leader in found.addresses and len(each.in_sync) >= in_sync for each in led
    )


def _frame_of_many(topic: str, partitions: Sequence[int], batch: PreparedBatch) -> bytes:
    topics = [(topic, [(index, batch.data) for index in partitions])]
    body = b"".join(encode_produce_request(PRODUCE_VERSION, None, ACKS_ALL, TIMEOUT_MS, topics))
    return framed(request_header(PRODUCE, PRODUCE_VERSION, 1, CLIENT_ID), body)


@contextmanager
def idle_connections(cluster: GrownCluster, count: int) -> Iterator[None]:
    """Holds this many connections open, spread over the brokers. Each has sent one request."""
    open_ones: list[Caller] = []
    try:
        for number in range(count):
            broker = cluster.processes.brokers[number % REPLICAS]
            caller = Caller(broker.port, timeout_s=WAIT_S)
            open_ones.append(caller)
            caller.call(API_VERSIONS, {"client_software_name": "bench", "client_software_version": "1"})
        yield
    finally:
        for caller in open_ones:
            caller.close()
