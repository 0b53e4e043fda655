"""Brokers of a cluster on simulated hosts, in virtual time, for tests of one behaviour each.

with SimWorld(1) as world:
    bench = ClusterBench(world)
    bench.run(bench.create("orders"))
    bench.run(bench.write("orders", [b"1", b"2"]))
    bench.leader("orders"), bench.partition(2, "orders")
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from ottla.broker.broker import Broker
from ottla.broker.cluster.metadata import ClusterMetadata
from ottla.broker.partition.partition import Partition
from ottla.client.admin.admin import Admin
from ottla.client.consumer.consumer import Consumer
from ottla.client.producer.producer import Producer
from ottla.net.apis import ClientApi, call, open_connection
from ottla.net.connection import Address
from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.coordination import SimCoordination
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld

PROPERTIES = {"auto.create.topics.enable": "false", "broker.session.timeout.ms": "2000"}
T = TypeVar("T")


class ClusterBench:
    def __init__(
        self,
        world: SimWorld,
        *,
        brokers: int = 3,
        properties: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        self.world = world
        self.store = SimCoordination(world.clock, seed=1)
        self.ids = range(1, brokers + 1)
        self.programs: dict[int, ClusterProgram] = {}
        for number in self.ids:
            rack = {"broker.rack": racks[number]} if racks and number in racks else {}
            self.programs[number] = ClusterProgram(self.store, number, {**PROPERTIES, **(properties or {}), **rack})
            world.host(self.name(number), program=self.programs[number])
        self.bootstrap = ",".join(f"{self.name(number)}:9092" for number in self.ids)
        world.boot_all()
        self.until(lambda: all(self.sees_all(number) for number in self.ids))

    @staticmethod
    def name(number: int) -> str:
        return f"broker-{number}"

    def host(self, number: int) -> SimHost:
        return self.world.hosts[self.name(number)]

    def broker(self, number: int) -> Broker:
        broker = self.programs[number].broker
        assert broker is not None
        return broker

    def cluster(self, number: int) -> ClusterMetadata:
        cluster = self.programs[number].cluster
        assert cluster is not None
        return cluster

    def sees_all(self, number: int) -> bool:
        program = self.programs[number]
        return program.broker_is_in() and len(self.cluster(number).nodes()) == len(self.ids)

    def kill(self, number: int) -> None:
        self.host(number).kill()
        self.programs[number].broker = None

    def boot(self, number: int) -> None:
        """Starts a broker; returns when it is registered."""
        self.host(number).boot()
        self.until(self.programs[number].broker_is_in)

    # -- time --------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 120) -> T:
        return self.world.run(work, timeout_s=timeout_s)

    def until(self, is_reached: Any, timeout_s: float = 60) -> None:
        self.world.run_until(is_reached, timeout_s=timeout_s)

    # -- where things are --------------------------------------------------------------------------------------

    def find(self, number: int, topic: str, index: int = 0) -> Partition | None:
        """Returns the replica of a running broker."""
        broker = self.programs[number].broker
        found = broker.topics.get(topic) if broker is not None and self.host(number).is_running else None
        return found.partition(index) if found is not None else None

    def partition(self, number: int, topic: str, index: int = 0) -> Partition:
        partition = self.find(number, topic, index)
        assert partition is not None, f"broker {number} does not have {topic}-{index}"
        return partition

    def leader(self, topic: str, index: int = 0) -> int:
        """Returns the running broker that leads, or -1."""
        for number in self.ids:
            partition = self.find(number, topic, index)
            if partition is not None and partition.leading is not None:
                return number
        return -1

    def isr(self, topic: str, index: int = 0) -> tuple[int, ...]:
        leader = self.leader(topic, index)
        return () if leader == -1 else tuple(sorted(self.partition(leader, topic, index).placement.isr))

    def until_in_sync(self, topic: str, index: int = 0, *, count: int = 3) -> None:
        self.until(lambda: len(self.isr(topic, index)) == count)

    # -- clients -----------------------------------------------------------------------------------------------

    async def create(self, topic: str, *, partitions: int = 1, factor: int = 3, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        async with Admin(self.bootstrap) as admin:
            await admin.create_topic(topic, partitions=partitions, replication_factor=factor, configs=named)

    async def write(self, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
        async with Producer(self.bootstrap) as producer:
            for value in values:
                await producer.send(topic, value, partition=partition)

    async def read(self, topic: str, count: int, partition: int = 0, **settings: Any) -> list[bytes | None]:
        found: list[bytes | None] = []
        async with Consumer(self.bootstrap, auto_offset_reset="earliest", **settings) as consumer:
            consumer.assign([(topic, partition)])
            while len(found) < count:
                found += [record.value for record in await consumer.fetch_records(100)]
        return found

    async def ask(self, number: int, api: ClientApi, body: dict[str, Any]) -> Any:
        """Sends one request to one broker."""
        connection = await open_connection(
            Address(self.name(number), 9092),
            client_id="test",
            software_version="1",
            connect_timeout_ms=2000,
            request_timeout_ms=10_000,
        )
        try:
            return await call(connection, api, body, what="asking")
        finally:
            connection.end()
