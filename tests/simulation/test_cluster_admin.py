"""Four simulated brokers without faults: replicas move, leaders are elected, topics are changed through any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from ottla.client.admin.admin import Admin
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import ClientError
from ottla.client.producer.producer import Producer
from ottla.net.apis import ClientApi, call, open_connection
from ottla.net.connection import Address
from ottla.protocol.model.errors import ErrorCode
from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.coordination import SimCoordination
from ottla.sim.world import SimWorld

BROKERS = 4
BOOTSTRAP = ",".join(f"broker-{number}:9092" for number in range(1, BROKERS + 1))
ELECT = ClientApi(43, "ElectLeaders", (2, 2))
REASSIGN = ClientApi(45, "AlterPartitionReassignments", (0, 0))
LIST = ClientApi(46, "ListPartitionReassignments", (0, 0))
TIMEOUT = timedelta(seconds=10)
T = TypeVar("T")


class Bench:
    def __init__(self, world: SimWorld) -> None:
        self.world = world
        store = SimCoordination(world.clock, seed=1)
        self.programs = [
            ClusterProgram(store, n, {"auto.create.topics.enable": "false"}) for n in range(1, BROKERS + 1)
        ]
        for number, program in enumerate(self.programs, 1):
            world.host(f"broker-{number}", program=program)
        world.boot_all()
        world.run_until(lambda: all(self._is_ready(program) for program in self.programs), timeout_s=30)

    @staticmethod
    def _is_ready(program: ClusterProgram) -> bool:
        return program.cluster is not None and program.broker_is_in() and len(program.cluster.nodes()) == BROKERS

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.world.run(work, timeout_s=60)

    async def ask_controller(self, api: ClientApi, body: dict[str, Any]) -> Any:
        """Sends a request to the controller that the metadata name, as clients do."""
        async with Admin(BOOTSTRAP) as admin:
            cluster = await admin.describe_cluster()
        connection = await open_connection(
            Address(f"broker-{cluster.controller_id}", 9092),
            client_id="test",
            software_version="1",
            connect_timeout_ms=2000,
            request_timeout_ms=10_000,
        )
        try:
            return await call(connection, api, body, what="asking the controller")
        finally:
            connection.end()

    def partition(self, topic: str, index: int = 0) -> Any:
        return self.run(_described(topic)).partitions[index]


async def _described(topic: str) -> Any:
    async with Admin(BOOTSTRAP) as admin:
        return await admin.describe_topic(topic)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with SimWorld(1) as world:
        yield Bench(world)


async def create(name: str, factor: int, partitions: int = 1) -> None:
    async with Admin(BOOTSTRAP) as admin:
        await admin.create_topic(name, partitions=partitions, replication_factor=factor)


async def write(topic: str, count: int) -> None:
    async with Producer(BOOTSTRAP) as producer:
        for number in range(count):
            await producer.send(topic, b"%d" % number, partition=0)


async def read(topic: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with Consumer(BOOTSTRAP, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        while len(found) < count:
            found += [record.value for record in await consumer.fetch_records(100)]
    return found


def test_replicas_move_and_take_the_records_along(bench: Bench) -> None:
    bench.run(create("orders", 2))
    bench.run(write("orders", 50))
    before = bench.partition("orders")
    target = tuple(sorted({1, 2, 3, 4} - set(before.replicas)))
    body = {
        "timeout": TIMEOUT,
        "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "replicas": target}]}],
    }
    answer = bench.run(bench.ask_controller(REASSIGN, body))
    assert answer.error_code is ErrorCode.none
    assert answer.responses[0].partitions[0].error_code is ErrorCode.none
    bench.world.run_until(lambda: set(bench_layout(bench).replicas) == set(target), timeout_s=30)
    after = bench.partition("orders")
    assert set(after.replicas) == set(after.isr) == set(target)
    assert after.leader in target
    assert bench.run(read("orders", 50)) == [b"%d" % number for number in range(50)]
    listed = bench.run(bench.ask_controller(LIST, {"timeout": TIMEOUT, "topics": None}))
    assert listed.topics == ()
    bench.world.run_for(1)
    for number, program in enumerate(bench.programs, 1):
        assert program.broker is not None
        here = [partition for partition in program.broker.context.partitions() if partition.topic.name == "orders"]
        assert bool(here) == (number in target), "the old replicas are gone, the new ones are there"


def bench_layout(bench: Bench) -> Any:
    broker = bench.programs[0].broker
    assert broker is not None
    topic = broker.topics.get("orders")
    assert topic is not None
    return topic.layouts[0]


def test_a_target_that_makes_no_sense_is_refused(bench: Bench) -> None:
    bench.run(create("orders", 2))
    for replicas in ((1, 1), (1, 9), ()):
        body = {
            "timeout": TIMEOUT,
            "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "replicas": replicas}]}],
        }
        answer = bench.run(bench.ask_controller(REASSIGN, body))
        assert answer.responses[0].partitions[0].error_code is ErrorCode.invalid_replica_assignment


def test_preferred_leaders_come_back(bench: Bench) -> None:
    bench.run(create("orders", 3))
    bench.run(write("orders", 5))
    preferred = bench.partition("orders").replicas[0]
    host = bench.world.hosts[f"broker-{preferred}"]
    host.kill()
    bench.world.run_until(lambda: bench_leader(bench, preferred) not in (-1, preferred), timeout_s=30)
    host.boot()
    others = next(number for number in range(1, BROKERS + 1) if number != preferred)
    bench.world.run_until(lambda: len(isr_seen_by(bench, others)) == 3, timeout_s=30)
    body = {
        "election_type": 0,
        "topic_partitions": [{"topic": "orders", "partitions": (0,)}],
        "timeout": TIMEOUT,
    }
    answer = bench.run(bench.ask_controller(ELECT, body))
    assert answer.replica_election_results[0].partition_result[0].error_code is ErrorCode.none
    bench.world.run_until(lambda: bench_leader(bench, 0) == preferred, timeout_s=30)
    again = bench.run(bench.ask_controller(ELECT, body))
    assert again.replica_election_results[0].partition_result[0].error_code is ErrorCode.election_not_needed
    assert bench.run(read("orders", 5)) == [b"%d" % number for number in range(5)]


def isr_seen_by(bench: Bench, number: int) -> tuple[int, ...]:
    broker = bench.programs[number - 1].broker
    assert broker is not None
    topic = broker.topics.get("orders")
    return topic.layouts[0].isr if topic is not None else ()


def bench_leader(bench: Bench, without: int) -> int:
    number = next(each for each in range(1, BROKERS + 1) if each != without)
    broker = bench.programs[number - 1].broker
    assert broker is not None
    topic = broker.topics.get("orders")
    return topic.layouts[0].leader if topic is not None else -1


def test_any_broker_creates_changes_and_deletes(bench: Bench) -> None:
    async def work() -> None:
        async with Admin("broker-1:9092") as first, Admin("broker-4:9092") as fourth:
            await first.create_topic("orders", partitions=2, replication_factor=3)
            with pytest.raises(ClientError, match="TOPIC_ALREADY_EXISTS"):
                await fourth.create_topic("orders", partitions=2, replication_factor=3)
            with pytest.raises(ClientError, match="replication factor"):
                await fourth.create_topic("too-many", partitions=1, replication_factor=5)
            await fourth.create_partitions("orders", 5)
            await asyncio.sleep(1)
            described = await first.describe_topic("orders")
            assert len(described.partitions) == 5
            await first.delete_topic("orders")
            await asyncio.sleep(1)
            assert [topic.name for topic in await fourth.list_topics()] == []

    bench.run(work())
    bench.world.run_for(5)
    for number in range(1, BROKERS + 1):
        assert bench.world.hosts[f"broker-{number}"].disk.files.list_dir("/data/logs") == []
