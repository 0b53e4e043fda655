"""The brokers of a siege with their network, disks and store, and the check whether the cluster is healthy again."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from tests.processes.siege import metadata
from tests.processes.siege.disks import Directory, Disk, SlowSyncs, SmallDisk
from tests.processes.siege.network import CannotError, Network, OneHost
from tests.processes.siege.node import Node
from tests.processes.siege.store import HOST, EtcdStore, SqliteStore, Store, ZookeeperStore
from tests.processes.siege.workloads import members, transactions
from tests.processes.traffic import create_replicated

CLIENTS = "clients"
PORT = 9092
WAL_PORT = 9192
OWN_PORTS_FROM = 10_000
"""Without network namespaces, each broker has ports of its own, above this."""
REPLICAS = 3
SESSION_MS = 5000
LAG_MS = 5000
START_S = 180.0
KEPT, MEMORY, POWER = "kept", "memory", "power"
TOPICS: Mapping[str, Mapping[str, int]] = {KEPT: {"disk": 3, "cache": 2}, MEMORY: {"memory": 4}, POWER: {"disk": 5}}
"""Partitions by durability class, which is also the topic's name, for each kind of shape."""
SETTINGS = {
    "ottla.host.shared": "true",
    "default.replication.factor": str(REPLICAS),
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": str(SESSION_MS),
    "replica.lag.time.max.ms": str(LAG_MS),
    "ottla.journal.bytes": str(32 << 20),
    "ottla.journal.file.bytes": str(4 << 20),
    "log.segment.bytes": str(4 << 20),
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "200",
    "group.consumer.session.timeout.ms": str(members.SESSION_MS),
    "group.consumer.heartbeat.interval.ms": str(members.SESSION_MS // 6),
}


@dataclass(frozen=True, slots=True)
class Shape:
    brokers: int
    store: str
    classes: str = KEPT
    """KEPT; MEMORY, where each process that ends loses a replica; or POWER, where all topics are of the class `disk`
    and all machines may lose the power at once."""

    @property
    def topics(self) -> Mapping[str, int]:
        """The topics of plain writers and readers."""
        return TOPICS[self.classes]

    @property
    def workload_classes(self) -> Mapping[str, str]:
        """The topics of transactions, with their durability classes."""
        return {transactions.SOURCE: next(iter(self.topics)), transactions.TARGET: self.wal_class}

    @property
    def wal_class(self) -> str:
        """The durability class of write-ahead logs, and of the output of exactly-once workers."""
        return list(self.topics)[-1]

    def __str__(self) -> str:
        power = ", power cuts of all brokers" if self.classes == POWER else ""
        return f"{self.brokers} brokers, {self.store}, topics of the class {' and '.join(self.topics)}{power}"

    @property
    def name(self) -> str:
        """A name for directories."""
        return f"{self.brokers}-{self.store}-{self.classes}"


class Cluster:
    """Features that need root or network namespaces are left out without them: `left_out` lists them with reasons."""

    def __init__(self, directory: Path, shape: Shape) -> None:
        self.shape = shape
        self.left_out: list[str] = []
        self.nodes: list[Node] = []
        self._disks: list[Disk] = []
        hosts = [f"broker-{number}" for number in range(1, shape.brokers + 1)]
        self.network = self._network([*hosts, CLIENTS, HOST])
        try:
            self.slow_syncs = SlowSyncs(directory)
            if self.slow_syncs.why_not:
                self.left_out.append(self.slow_syncs.why_not)
            self.store = self._store(directory)
            for number, host in enumerate(hosts, 1):
                self.nodes.append(self._node(directory, number, host))
            self.network.enter(CLIENTS)
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)

    @property
    def wal_servers(self) -> str:
        return ",".join(node.wal_address for node in self.nodes)

    @property
    def partitions(self) -> list[tuple[str, int]]:
        return [(topic, index) for topic, count in self.shape.topics.items() for index in range(count)]

    @property
    def can_cut(self) -> bool:
        return isinstance(self.network, Network)

    @property
    def can_cut_power(self) -> bool:
        """Whether a broker's file system can lose what is not on its device."""
        return self.can_fill

    @property
    def can_fill(self) -> bool:
        return all(isinstance(disk, SmallDisk) for disk in self._disks)

    def _network(self, hosts: list[str]) -> Network | OneHost:
        try:
            if os.geteuid() != 0:
                raise CannotError("only root can make network namespaces")
            return Network(hosts)
        except CannotError as problem:
            self.left_out.append(f"cut links: {problem}")
            return OneHost(hosts)

    def _store(self, directory: Path) -> Store:
        if self.shape.store == "sqlite":
            return SqliteStore(directory)
        place = functools.partial(self.network.on, HOST)
        kind = ZookeeperStore if self.shape.store == "zookeeper" else EtcdStore
        return kind(directory, self.network.address(HOST), place)

    def _node(self, directory: Path, number: int, host: str) -> Node:
        disk: Disk
        try:
            if os.geteuid() != 0:
                raise CannotError("only root can mount a file system")
            disk = SmallDisk(directory / host)
        except CannotError as problem:
            if not self._disks:
                self.left_out.append(f"a full disk: {problem}")
            disk = Directory(directory / f"{host}-data")
        self._disks.append(disk)
        port, wal_port = PORT, WAL_PORT
        if not self.can_cut:
            port, wal_port = port + OWN_PORTS_FROM + number, wal_port + OWN_PORTS_FROM + number
        config = {**SETTINGS, "node.id": str(number), "ottla.coordination": self.store.setting}
        config["ottla.wal.port"] = str(wal_port)
        environment = self.slow_syncs.environment(directory / f"{host}.slow")
        place = functools.partial(self.network.on, host)
        return Node(number, self.network.address(host), (port, wal_port), disk, config, environment, place)

    def start(self) -> None:
        self.store.start()
        for node in self.nodes:
            node.start()
        deadline_s = time.monotonic() + START_S
        while None in self.states() and time.monotonic() < deadline_s:
            time.sleep(0.2)
        self._create_topics(deadline_s)
        if not self.wait_in_sync(START_S):
            raise TimeoutError(f"the cluster did not come up: {self.nodes[0].log()[-4000:]}")

    def _create_topics(self, deadline_s: float) -> None:
        left = {name: (count, name) for name, count in self.shape.topics.items()}
        left |= {name: (transactions.PARTITIONS, each) for name, each in self.shape.workload_classes.items()}
        while left:
            name, (count, durability) = next(iter(left.items()))
            try:
                create_replicated(self.bootstrap, name, count, REPLICAS, ottla_durability=durability)
            except (KafkaException, TimeoutError) as problem:
                # librdkafka waits in vain if the first broker it asked knew neither brokers nor a controller yet.
                if isinstance(problem, TimeoutError) or problem.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.5)
                    continue
            del left[name]

    def states(self) -> list[metadata.State | None]:
        """Returns the cluster state as each broker sees it."""
        return [metadata.ask(node.address, 2.0) for node in self.nodes]

    def is_in_sync(self) -> bool:
        """Returns whether every broker answers and reports every replica in sync, also those of internal topics."""
        if not all(node.running and not node.is_paused for node in self.nodes):
            return False
        states = self.states()
        first = states[0]
        if first is None or any(state != first for state in states[1:]):
            return False
        is_there = all(where in first for where in self.partitions)
        return is_there and all(one.leader >= 0 and one.in_sync == one.replicas for one in first.values())

    def wait_in_sync(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self.is_in_sync():
                return True
            time.sleep(0.2)
        return False

    def heal(self) -> None:
        """Ends every fault."""
        self.network.mend_all()
        self.store.start()
        for node in self.nodes:
            node.disk.free()
            node.speed_up()
            if node.is_paused:
                node.resume()
            if not node.running:
                node.start()

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
        if hasattr(self, "store"):
            self.store.close()
        for disk in self._disks:
            disk.close()
        self.network.close()
