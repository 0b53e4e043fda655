"""A real broker and real clients on simulated hosts, over a network with delays, partitions, resets, kills and power
cuts.

Idempotent producers write to a topic of the class `disk` during faults; consumers read all the time. When the faults
are over, all work must finish: each record is acknowledged or given up, and the log holds every acknowledged record
once, at its acknowledged offset, in the order of each producer. Every record that a consumer read is in the log.

To repeat one seed: `python -m tests.simulation.test_networked_broker SEED`, which prints its faults and its digest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import pytest

from ottla.client.admin.admin import Admin
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.types import ConsumerRecord
from ottla.client.errors import DeliveryError, DeliveryTimedOutError
from ottla.client.producer.deliveries import RecordMetadata
from ottla.client.producer.producer import Producer
from ottla.sim.broker_host import BrokerProgram
from ottla.sim.catalog import SimCatalog
from ottla.sim.disk import QueueName
from ottla.sim.fault_plan import FaultKind, FaultPlan
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld
from tests.simulation.cluster_clients import started

SEEDS = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 3, 10)
ROOT = Path(__file__).resolve().parents[2]
SERVER = "broker:9092"
TOPIC = "orders"
PARTITIONS = 2
FAULTS_S = 15.0
PRODUCERS = ("producer-1", "producer-2", "producer-3")
CONSUMERS = ("consumer-1", "consumer-2")
SYNCED_QUEUES: tuple[QueueName, ...] = ("journal", "segment", "sync")
KINDS = (FaultKind.POWER_CUT, FaultKind.KILL, FaultKind.RESET, *FaultKind)
"""Crashes and resets are more frequent than the rest."""

Place = tuple[int, int]
"""Partition and offset."""


@dataclass
class History:
    """The outcomes that clients observed, by record value."""

    acknowledged: dict[bytes, Place] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    """Records that the producer gave up; they may or may not be written."""
    refused: set[bytes] = field(default_factory=set)
    """Records that the producer gave up and that are certainly not written."""
    seen: dict[str, dict[Place, bytes]] = field(default_factory=dict)
    """Records that each consumer read."""


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.server = SERVER
        self.topic_settings: dict[str, Any] = {"configs": {"ottla.durability": "disk"}}
        self.world = SimWorld(seed)
        self.history = History()
        self.log: dict[Place, bytes] = {}
        """The records in the log at the end."""
        self._is_over = False
        self._set_up(Random(f"{seed}/setup"))

    def _set_up(self, rng: Random) -> None:
        seed = self.seed
        self.plan = FaultPlan.drawn(
            seed,
            servers=["broker"],
            clients=[*PRODUCERS, *CONSUMERS],
            duration_s=FAULTS_S,
            count=rng.randint(4, 10),
            kinds=KINDS,
        )
        self.program = BrokerProgram(SimCatalog(), {"log.retention.ms": "-1"}, on_disk=self._choose_disk_speed)
        self.world.host("broker", program=self.program, drift_ppm=rng.uniform(-100, 100))
        for name in (*PRODUCERS, *CONSUMERS):
            self.world.host(name, skew_ms=rng.uniform(-500, 500), drift_ppm=rng.uniform(-100, 100))
        self._sync_ms = rng.choice([0.2, 10.0, 100.0])

    def _choose_disk_speed(self, host: SimHost) -> None:
        for queue in SYNCED_QUEUES:
            host.disk.slow_down(queue, self._sync_ms)

    def execute(self) -> None:
        with self.world as world:
            world.boot_all()
            world.run(self._create_topic(), timeout_s=30)
            producing = [world.hosts[name].spawn(self._produce(name), name="produce") for name in PRODUCERS]
            consuming = [world.hosts[name].spawn(self._consume(name), name="consume") for name in CONSUMERS]
            self.plan.start(world)
            world.run_for(self.plan.ends_s)
            self._is_over = True
            world.run_until(lambda: all(task.done() for task in producing), timeout_s=150)
            self.log = world.run(self._read_all(), timeout_s=60)
            seen = self.history.seen
            world.run_until(lambda: all(len(seen[name]) >= len(self.log) for name in CONSUMERS), timeout_s=60)
            for task in consuming:
                task.cancel()
            world.run_until(lambda: all(task.done() for task in consuming), timeout_s=60)
            self._wait_for_the_servers()

    def _wait_for_the_servers(self) -> None:
        """Waits for the servers before their state is inspected."""

    # -- clients -----------------------------------------------------------------------------------------------

    async def _create_topic(self) -> None:
        async with Admin(self.server) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, **self.topic_settings)

    async def _produce(self, name: str) -> None:
        rng = Random(f"{self.seed}/{name}")
        new_producer = partial(
            Producer,
            self.server,
            request_timeout_ms=3000,
            connect_timeout_ms=2000,
            delivery_timeout_ms=rng.choice([100_000, 100_000, 5000]),
            linger_ms=rng.choice([0, 5]),
        )
        producer = await started(new_producer)
        number = 0
        while not self._is_over:
            for _ in range(rng.choice([1, 1, 3, 10])):
                number += 1
                value = b"%s number %d." % (name.encode(), number)
                padded = value + b"x" * rng.choice([0, 0, 0, 500, 5000])
                sent = producer.send_nowait(TOPIC, padded, partition=rng.randrange(PARTITIONS))
                sent.add_done_callback(partial(self._on_settled, value))
            await asyncio.sleep(rng.choice([0.0, 0.05, 0.5, 1.5]))
        try:
            await producer.close()
        except DeliveryError:
            assert self.history.unknown or self.history.refused

    def _on_settled(self, value: bytes, sent: asyncio.Future[RecordMetadata]) -> None:
        error = sent.exception()
        if error is None:
            self.history.acknowledged[value] = (sent.result().partition, sent.result().offset)
        else:
            assert isinstance(error, DeliveryTimedOutError), error
            (self.history.unknown if error.may_be_written else self.history.refused).add(value)

    async def _consume(self, name: str) -> None:
        seen = self.history.seen[name] = {}
        consumer = await started(
            partial(
                Consumer, self.server, auto_offset_reset="earliest", request_timeout_ms=3000, connect_timeout_ms=2000
            )
        )
        consumer.subscribe([TOPIC])
        try:
            while True:
                for record in await consumer.fetch_records(100):
                    _note(seen, record)
        finally:
            await consumer.close()

    async def _read_all(self) -> dict[Place, bytes]:
        log: dict[Place, bytes] = {}
        async with Consumer(self.server, auto_offset_reset="earliest") as consumer:
            partitions = [(TOPIC, index) for index in range(PARTITIONS)]
            ends = await consumer.end_offsets(partitions)
            consumer.assign(partitions)
            while len(log) < sum(ends.values()):
                for record in await consumer.fetch_records(1000):
                    _note(log, record)
        return log

    # -- invariants ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        history, log = self.history, self.log
        assert len(history.acknowledged) > 20, "too little happened"
        values = set(log.values())
        assert len(values) == len(log), "a record is there twice"
        lost = {value: place for value, place in history.acknowledged.items() if log.get(place) != value}
        assert not lost, f"acknowledged, and not where the producer was told: {lost}"
        assert not history.refused & values, "their producer was told that they are not written"
        assert values <= history.acknowledged.keys() | history.unknown, "nobody knows of these"
        for producer in PRODUCERS:
            for partition in range(PARTITIONS):
                numbers = self._numbers(producer, partition)
                assert numbers == sorted(numbers), f"{producer} is out of order in partition {partition}"
        for name, seen in history.seen.items():
            assert seen == log, f"{name} saw something else than what is there"

    def _numbers(self, producer: str, partition: int) -> list[int]:
        """Returns the numbers of the producer's records in log order."""
        in_order = [value for (index, _), value in sorted(self.log.items()) if index == partition]
        return [int(value.split()[-1][:-1]) for value in in_order if value.startswith(producer.encode())]


def _note(log: dict[Place, bytes], record: ConsumerRecord) -> None:
    assert record.value is not None
    place, before = (record.partition, record.offset), (record.partition, record.offset - 1)
    assert place not in log, f"offset {record.offset} came twice"
    assert record.offset == 0 or before in log, f"offset {record.offset} came without the one before"
    log[place] = record.value[: record.value.index(b".") + 1]


# -- tests -----------------------------------------------------------------------------------------------------------


@dataclass
class Rate:
    seeds: int = 0
    virtual_s: float = 0.0
    real_s: float = 0.0
    records: int = 0


@pytest.fixture(scope="module")
def rate(pytestconfig: pytest.Config) -> Iterator[Rate]:
    """Prints at the end how fast virtual time passed."""
    rate = Rate()
    yield rate
    if rate.seeds:
        capture = pytestconfig.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(
                f"\n{rate.seeds} seeds, {rate.records} acknowledged records, {rate.virtual_s:.0f} virtual seconds in "
                f"{rate.real_s:.1f} s: {rate.virtual_s / max(rate.real_s, 1e-9):.0f} virtual seconds a second"
            )


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in range(SEEDS)])
def test_every_acknowledged_record_is_there_once_and_in_order(
    seed: int, rate: Rate, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(seed)
    begin_s = perf_counter()
    run.execute()
    rate.real_s += perf_counter() - begin_s
    rate.virtual_s += run.world.now_s
    rate.seeds += 1
    rate.records += len(run.history.acknowledged)
    run.check()
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR] == []


def test_another_process_with_other_hashes_has_the_same_run() -> None:
    """Nothing may depend on the order of a set, on memory addresses or on the time of garbage collection."""
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation.test_networked_broker", "3"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    run = Run(3)
    run.world.trace.start()
    run.execute()
    assert outputs == [f"{run.plan}\n{run.world.trace.digest}\n"] * 2


if __name__ == "__main__":
    the_run = Run(int(sys.argv[1]))
    print(the_run.plan)
    the_run.world.trace.start()
    the_run.execute()
    print(the_run.world.trace.digest)
    the_run.check()
