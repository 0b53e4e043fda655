"""Three real brokers and real clients on simulated hosts, while brokers die, lose power, are paused and cut off, and
the coordination store is away, slow or leaves questions open.

    run = ClusterRun(seed)
    run.execute()             # a `Violation`, or any other error, is a fault of the brokers
    run.check()
    run.plan, run.history, run.world.now_s

What clients are promised is checked as for one broker: each acknowledged record is there once, where its producer was
told, in order, and whatever a consumer ever saw stays. Inside the brokers, ten times a virtual second: one leader for
each epoch, watermarks that never go back, and below the watermark the same bytes everywhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from ottla.broker.partition import Partition
from ottla.client.errors import ClientError
from ottla.log.batches import Slice
from ottla.log.contract import ColdRead
from ottla.model.errors import Refused
from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.coordination import SimCoordination
from ottla.sim.fault_plan import FaultKind, FaultPlan
from tests.simulation.test_networked_broker import CONSUMERS, PARTITIONS, PRODUCERS, TOPIC, Run

BROKERS = ("broker-1", "broker-2", "broker-3")
FAULTS_S = 15.0
PROBE_S = 0.1
KINDS = (FaultKind.KILL, FaultKind.POWER_CUT, FaultKind.PAUSE, FaultKind.PARTITION, *FaultKind)
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "log.retention.ms": "-1",
    "broker.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
}


class Violation(AssertionError):  # noqa: N818 # not an error of the run: what it is there to find
    """Something that is promised does not hold. Its text begins with the name of what was checked."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run does besides what its seed says."""

    faults_s: float = FAULTS_S


class ClusterRun(Run):
    def __init__(self, seed: int, options: RunOptions | None = None) -> None:
        self.options = options or RunOptions()
        super().__init__(seed)

    def _set_up(self, rng: Random) -> None:
        seed = self.seed
        self.server = ",".join(f"{name}:9092" for name in BROKERS)
        self.topic_settings = {"replication_factor": 3, "configs": {"ottla.durability": "disk"}}
        clients = [*PRODUCERS, *CONSUMERS]
        count = rng.randint(3, 9)
        self.plan = FaultPlan.drawn(
            seed, servers=BROKERS, clients=clients, duration_s=self.options.faults_s, count=count, kinds=KINDS
        )
        self.store = SimCoordination(self.world.clock, seed=seed)
        self.programs = {
            name: ClusterProgram(self.store, number, PROPERTIES, on_disk=self._choose_disk_speed)
            for number, name in enumerate(BROKERS, 1)
        }
        for name, program in self.programs.items():
            self.world.host(name, program=program, drift_ppm=rng.uniform(-100, 100))
        for name in clients:
            self.world.host(name, skew_ms=rng.uniform(-500, 500), drift_ppm=rng.uniform(-100, 100))
        self._sync_ms = rng.choice([0.2, 10.0, 50.0])
        self._leaders: dict[tuple[int, int], str] = {}
        self._watermarks: dict[tuple[str, int, int, int], int] = {}
        self._plan_outages(rng)
        self.world.after(PROBE_S, self._probe)

    def _plan_outages(self, rng: Random) -> None:
        faults = self.store.faults
        faults.delay_ms = rng.choice([(0.1, 1.0), (1.0, 30.0)])
        faults.watch_lag_ms = rng.choice([(0.1, 1.0), (1.0, 300.0)])
        faults.break_share = rng.choice([0.0, 0.0, 0.05])
        if rng.random() < 0.4:
            at_s = 2 + rng.random() * self.options.faults_s
            self.world.after(at_s, self.store.stop)
            self.world.after(min(at_s + rng.choice([0.5, 3.0, 8.0]), self.options.faults_s + 2), self.store.start)

    async def _create_topic(self) -> None:
        while True:
            try:
                await super()._create_topic()
            except ClientError:  # not all brokers are registered yet
                await asyncio.sleep(0.1)
            else:
                return

    # -- what a campaign counts ----------------------------------------------------------------------------------

    @property
    def leader_changes(self) -> int:
        """After the first leader of each partition."""
        return max(len(self._leaders) - len({index for index, _ in self._leaders}), 0)

    @property
    def fault_counts(self) -> Counter[str]:
        """By kind."""
        return Counter(fault.kind.value for fault in self.plan.faults)

    # -- inside the brokers --------------------------------------------------------------------------------------

    def _partitions(self) -> Iterator[tuple[str, Partition]]:
        for name, program in self.programs.items():
            host = self.world.hosts[name]
            if host.is_running and program.broker is not None:
                for partition in program.broker.partitions():
                    if partition.topic.name == TOPIC:
                        yield name, partition

    def _probe(self) -> None:
        for name, partition in self._partitions():
            epoch = partition.leader_epoch
            if partition.leading is not None:
                incarnation = f"{name}/{self.world.hosts[name].incarnation}"
                leader = self._leaders.setdefault((partition.index, epoch), incarnation)
                if leader != incarnation:
                    raise Violation("one leader an epoch", f"partition {partition.index}: two in epoch {epoch}")
            key = (name, self.world.hosts[name].incarnation, partition.index, epoch)
            watermark = partition.high_watermark
            if watermark < self._watermarks.get(key, 0):
                raise Violation("watermark", f"the watermark of {key} went back")
            self._watermarks[key] = watermark
        self.world.after(PROBE_S, self._probe)

    def _wait_for_the_servers(self) -> None:
        """Nothing is wrong any more: everybody has to be back, and to have everything."""
        self.world.run_until(self._is_whole, timeout_s=60)

    def _is_whole(self) -> bool:
        for index in range(PARTITIONS):
            found = [partition for _, partition in self._partitions() if partition.index == index]
            ends = {end for p in found for end in (p.log_end_offset, p.high_watermark, p.log.acknowledged_end)}
            isrs = [p.leading.isr for p in found if p.leading is not None]
            if len(found) < len(BROKERS) or len(ends) > 1 or len(isrs) != 1 or len(isrs[0]) < len(BROKERS):
                return False
        return True

    def check(self) -> None:
        super().check()
        for index in range(PARTITIONS):
            copies = {name: self._bytes_of(p) for name, p in self._partitions() if p.index == index}
            assert len(copies) == len(BROKERS), "a broker is not back"
            shortest = min(map(len, copies.values()))
            assert len({content[:shortest] for content in copies.values()}) == 1, f"replicas differ: {index}"

    def _bytes_of(self, partition: Partition) -> bytes:
        content, offset = b"", partition.log_start_offset
        while offset < partition.high_watermark:
            part = partition.log.read(offset, 1 << 20, partition.high_watermark)
            found: Slice | Refused = part.run() if isinstance(part, ColdRead) else part
            assert isinstance(found, Slice), found
            assert found.next_offset > offset
            content += b"".join(bytes(view) for view in found.buffers)
            offset = found.next_offset
        return content
