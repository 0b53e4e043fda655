"""A simulated cluster for the tables of docs/reference/guarantees.md: whole brokers, clients, and one failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal

from ottla.broker.partition.partition import Partition
from ottla.client.admin.admin import Admin
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import ClientError, DeliveryError
from ottla.client.producer.producer import Producer
from ottla.sim.broker_host import DATA_DIR
from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.coordination import SimCoordination
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld

TOPIC = "orders"
SESSION_S = 2.0
PATIENCE_S = 60.0
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
    "broker.session.timeout.ms": str(int(SESSION_S * 1000)),
    "replica.lag.time.max.ms": "2000",
}
Acks = Literal["all", 0, 1]


class GuaranteeBench:
    def __init__(self, world: SimWorld, *, brokers: int, min_insync: int, durability: str) -> None:
        self.world = world
        self.store = SimCoordination(world.clock, seed=world.seed)
        self.names = [f"broker-{number}" for number in range(1, brokers + 1)]
        self.bootstrap = ",".join(f"{name}:9092" for name in self.names)
        self.programs = {
            name: ClusterProgram(self.store, number, PROPERTIES) for number, name in enumerate(self.names, 1)
        }
        for name, program in self.programs.items():
            world.host(name, program=program)
        world.boot_all()
        world.run_until(lambda: all(self._is_in(name, brokers) for name in self.names), timeout_s=30)
        configs = {"ottla.durability": durability, "min.insync.replicas": str(min_insync)}
        world.run(self._create(brokers, configs), timeout_s=30)
        self.wait_until_in_sync()

    def _is_in(self, name: str, brokers: int) -> bool:
        program = self.programs[name]
        return program.cluster is not None and program.broker_is_in() and len(program.cluster.nodes()) == brokers

    async def _create(self, replicas: int, configs: dict[str, str]) -> None:
        async with Admin(self.bootstrap) as admin:
            await admin.create_topic(TOPIC, partitions=1, replication_factor=replicas, configs=configs)

    # -- brokers ----------------------------------------------------------------------------------------------

    def host(self, name: str) -> SimHost:
        return self.world.hosts[name]

    def partition(self, name: str) -> Partition | None:
        broker = self.programs[name].broker
        topic = broker.topics.get(TOPIC) if broker is not None and self.host(name).is_running else None
        return topic.partition(0) if topic is not None else None

    def leaders(self) -> list[str]:
        found = {name: self.partition(name) for name in self.names if not self.host(name).is_paused}
        return [name for name, partition in found.items() if partition is not None and partition.leading is not None]

    def leader(self) -> str:
        self.world.run_until(lambda: len(self.leaders()) == 1, timeout_s=PATIENCE_S)
        return self.leaders()[0]

    def followers(self) -> list[str]:
        leader = self.leader()
        return [name for name in self.names if name != leader]

    def isr(self) -> set[str]:
        partition = self.partition(self.leader())
        assert partition is not None
        return {f"broker-{number}" for number in partition.placement.isr}

    def wait_for_another_leader(self, than: str) -> None:
        self.world.run_until(lambda: any(name != than for name in self.leaders()), timeout_s=PATIENCE_S)

    def wait_until_in_sync(self, names: Iterable[str] | None = None) -> None:
        wanted = set(names if names is not None else self.names)
        self.world.run_until(lambda: bool(self.leaders()) and self.isr() == wanted, timeout_s=PATIENCE_S)

    # -- failures ---------------------------------------------------------------------------------------------

    def kill(self, *names: str) -> None:
        for name in names:
            self.host(name).kill()

    def cut_power(self, *names: str) -> None:
        """Cuts the power; nothing that was not synced survives."""
        for name in names:
            self.host(name).cut_power("none")

    def destroy_disk(self, *names: str) -> None:
        self.cut_power(*names)
        for name in names:
            self.host(name).disk.wipe(DATA_DIR)
            self.programs[name].directory += 1

    def boot(self, *names: str) -> None:
        for name in names:
            self.programs[name].broker = None  # that of the previous process
            self.host(name).boot()

    def cut_off(self, name: str) -> None:
        """Isolates a broker from the other brokers and the coordination store. Clients still reach it."""
        self.world.network.cut([name], [other for other in self.names if other != name])
        client = self.programs[name].client
        assert client is not None
        self.store.cut_off(client)

    def heal(self, name: str) -> None:
        self.world.network.heal()
        client = self.programs[name].client
        assert client is not None
        self.store.reconnect(client)

    # -- clients ----------------------------------------------------------------------------------------------

    def write(self, values: Iterable[bytes], *, acks: Acks = "all", timeout_s: float = 20.0) -> list[bytes]:
        """Writes records and returns the acknowledged ones."""
        return self.world.run(self._write(list(values), acks, timeout_s), timeout_s=timeout_s + PATIENCE_S)

    def write_into_a_power_cut(self, values: Iterable[bytes], *, acks: Acks) -> list[bytes]:
        """Writes records, cuts the leader's power after the first, and returns those that the producer takes for
        done."""
        leader = self.leader()
        write = self._write(list(values), acks, 20.0, lambda: self.cut_power(leader))
        return self.world.run(write, timeout_s=PATIENCE_S)

    async def _write(
        self, values: list[bytes], acks: Acks, timeout_s: float, strike: Callable[[], object] | None = None
    ) -> list[bytes]:
        producer = Producer(
            self.bootstrap,
            acks=acks,
            idempotence=acks == "all",
            delivery_timeout_ms=int(timeout_s * 1000),
            request_timeout_ms=3000,
            connect_timeout_ms=1000,
        )
        acknowledged: list[bytes] = []
        try:
            await producer.start()
        except ClientError:  # an isolated broker cannot hand out producer ids once its block is used up
            return acknowledged
        try:
            for value in values:
                try:
                    await producer.send(TOPIC, value, partition=0)
                except DeliveryError:
                    break
                acknowledged.append(value)
                if strike is not None and len(acknowledged) == 1:
                    strike()
        finally:
            try:
                await producer.close()
            except DeliveryError:
                assert len(acknowledged) < len(values)
        return acknowledged

    def read(self) -> dict[int, bytes]:
        """Returns all visible records by offset."""
        return self.world.run(self._read(), timeout_s=PATIENCE_S)

    async def _read(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        place = (TOPIC, 0)
        async with Consumer(self.bootstrap, auto_offset_reset="earliest", request_timeout_ms=3000) as consumer:
            begin, end = await self._bounds(consumer)
            consumer.assign([place])
            position = begin
            while position < end:
                for record in await consumer.fetch_records(1000):
                    assert record.value is not None
                    assert record.offset == position, "a gap"
                    found[record.offset] = record.value
                    position = record.offset + 1
        return found

    async def _bounds(self, consumer: Consumer) -> tuple[int, int]:
        place = TopicPartition(TOPIC, 0)
        while True:
            try:
                begins, ends = await consumer.beginning_offsets([place]), await consumer.end_offsets([place])
            except ClientError:  # a leader is not ready, or does not know its high watermark
                await asyncio.sleep(0.2)
            else:
                return begins[place], ends[place]
