"""A cluster under more load than it can take: producers keep more in flight than every limit of a broker allows.

    run = LoadRun(seed)
    run.execute()
    run.check()

First the peak is measured with a moderate number of requests in flight, then the same producers offer all they can.
Checked: goodput stays within a fifth of the peak, no replica leaves the ISR, no request fails, no other client waits
for a reply that needs no disk, every accepted record is acknowledged once the producers pause, and all replicas agree.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from ottla.broker.partition.partition import Partition
from ottla.client.admin.admin import Admin
from ottla.net.connection import Address, Connection
from ottla.protocol.wire.produce import encode_produce_request, parse_produce_response
from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.coordination import SimCoordination
from ottla.sim.disk_fault_plan import SYNCED_QUEUES
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld
from tests.simulation.load_plan import BROKERS, CALM_BYTES, DEPTH_BYTES_MAX, DEPTH_BYTES_MIN, PROBE, LoadPlan
from tests.simulation.violations import Violation
from tests.support.sim_logs import batch_of

TOPIC = "load"
PRODUCE_KEY, PRODUCE_VERSION = 0, 11
API_VERSIONS_KEY = 18
LAG_MAX_MS = 6000
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": str(LAG_MAX_MS),
    "log.retention.ms": "-1",
}
WARM_UP_S = 0.5
PEAK_S = 3.0
OVERLOAD_S = 5.0
FLUSHES = 6
"""Number of flushes that a measurement covers at least. A full journal commits in bursts, one for each flush, so a
shorter measurement depends on where in the cycle it begins (seed 1487: 95 to 148 KB/s within 3 s)."""
PROBE_EVERY_S = 0.02
PROBE_MAX_S = 0.25
GOODPUT_SHARE = 0.8
REQUEST_TIMEOUT_MS = 300_000
DRAIN_S = 5.0
"""Time to drain the overload's requests in flight at the peak rate."""


class LoadRun:
    """One seed."""

    def __init__(self, seed: int, plan: LoadPlan | None = None, drain_s: float = DRAIN_S) -> None:
        self.seed = seed
        self._drain_s = drain_s
        self.plan = plan or LoadPlan.drawn(seed)
        self.world = SimWorld(seed)
        self.fault_counts: Counter[str] = Counter()
        self.acknowledged = 0
        self.leader_changes = 0
        self.waits = 0
        """How often a producer was throttled: a run without that shows nothing."""
        self.peak = self.goodput = 0.0
        """Committed bytes per second."""
        self.isr_shrinks = 0
        self.probe_max_s = 0.0
        self.probes = 0
        self.refusals: Counter[int] = Counter()
        self._batch_size = len(batch_of([bytes(self.plan.batch_bytes)]))
        self._sent = 0
        self._is_over = False
        self._window_bytes = CALM_BYTES // len(self.plan.acks)
        store = SimCoordination(self.world.clock, seed=seed)
        properties = {**PROPERTIES, **self.plan.limits}
        self._programs = {
            name: ClusterProgram(store, number, properties, on_disk=self._set_speed)
            for number, name in enumerate(BROKERS, 1)
        }
        for name, program in self._programs.items():
            self.world.host(name, program=program)
        for name in (*self.plan.producers, PROBE):
            self.world.host(name)
        for source in (*BROKERS, *self.plan.producers):
            for target in BROKERS:
                if source != target:
                    self.world.network.link(source, target).bandwidth_bytes_s = self.plan.network_bytes_s

    def _set_speed(self, host: SimHost) -> None:
        slower = self.plan.slow_follower if host.name == BROKERS[-1] else 1.0
        for queue in SYNCED_QUEUES:
            host.disk.slow_down(queue, self.plan.sync_ms * slower, self.plan.disk_bytes_ms / slower)

    # -- the run -------------------------------------------------------------------------------------------------

    def execute(self) -> None:
        with self.world:
            world, plan = self.world, self.plan
            world.boot_all()
            world.run_until(lambda: all(program.broker_is_in() for program in self._programs.values()), timeout_s=30)
            world.run(self._create_topic(), timeout_s=30)
            world.run_until(self._is_whole, timeout_s=30)
            producing = [
                world.hosts[name].spawn(self._produce(name, acks))
                for name, acks in zip(plan.producers, plan.acks, strict=True)
            ]
            world.run_for(WARM_UP_S)
            self.peak = self._measured(max(PEAK_S, FLUSHES * plan.flush_s))
            depth_bytes = int(min(max(self.peak * self._drain_s, DEPTH_BYTES_MIN), DEPTH_BYTES_MAX))
            self._window_bytes = depth_bytes // len(plan.acks)
            world.hosts[PROBE].spawn(self._probe())
            self._watch_isr()
            if plan.hiccup_s:
                world.after(1.0, self._hiccup)
            self.goodput = self._measured(max(OVERLOAD_S, FLUSHES * plan.flush_s), idle_s=plan.hiccup_s)
            self._is_over = True
            self._eventually("all producers are answered", lambda: all(task.done() for task in producing), 120)
            self._eventually("all replicas have everything", self._is_whole, 10)
            self.waits = sum(program.broker.backlog.waits for program in self._programs.values() if program.broker)

    def _measured(self, duration_s: float, idle_s: float = 0.0) -> float:
        """Returns the rate at which records are committed. The rate of acknowledgements would be too high for a short
        time with acks=1: the leader acknowledges records faster than followers can copy them, until its backlog is
        full (seed 1121)."""
        before = self._committed_count()
        self.world.run_for(duration_s)
        return (self._committed_count() - before) * self._batch_size / (duration_s - idle_s)

    def _committed_count(self) -> int:
        return sum(
            partition.high_watermark
            for index in range(self.plan.partitions)
            for partition in self._replicas(index).values()
            if partition.leading is not None
        )

    def _eventually(self, what: str, is_reached: object, timeout_s: float) -> None:
        assert callable(is_reached)
        until_s = self.world.now_s + timeout_s
        while not is_reached():
            if self.world.now_s > until_s:
                raise Violation("liveness", f"not within {timeout_s} s after the load: {what}")
            self.world.run_for(0.1)

    async def _create_topic(self) -> None:
        configs = {"ottla.durability": self.plan.durability, "min.insync.replicas": "2"}
        async with Admin(f"{BROKERS[0]}:9092") as admin:
            await admin.create_topic(TOPIC, partitions=self.plan.partitions, replication_factor=3, configs=configs)

    def _hiccup(self) -> None:
        """Pauses a broker that follows some partitions and leads others."""
        host = self.world.hosts[BROKERS[1]]
        self.fault_counts["hiccup"] += 1
        host.pause()
        self.world.after(self.plan.hiccup_s, host.resume)

    # -- clients -------------------------------------------------------------------------------------------------

    async def _produce(self, name: str, acks: int) -> None:
        rng = Random(f"{self.seed}/{name}")
        batch = bytes(batch_of([rng.randbytes(self.plan.batch_bytes)]))
        connections: dict[str, Connection] = {}
        in_flight: set[asyncio.Future[memoryview]] = set()
        held_bytes = 0
        answered = asyncio.Event()

        def on_answer(reply: asyncio.Future[memoryview]) -> None:
            nonlocal held_bytes
            in_flight.discard(reply)
            held_bytes -= len(batch)
            answered.set()
            self._note(reply)

        while not self._is_over:
            if held_bytes >= max(self._window_bytes, len(batch)):
                answered.clear()
                await answered.wait()
                continue
            index = rng.randrange(self.plan.partitions)
            leader = self._leader_of(index)
            if leader not in connections:
                connections[leader] = await self._connected(leader)
            body = encode_produce_request(PRODUCE_VERSION, None, acks, REQUEST_TIMEOUT_MS, [(TOPIC, [(index, batch)])])
            reply = connections[leader].request(PRODUCE_KEY, PRODUCE_VERSION, body, what="producing")
            self._sent += 1
            held_bytes += len(batch)
            in_flight.add(reply)
            reply.add_done_callback(on_answer)
            if rng.random() < 0.05:
                await asyncio.sleep(0)
        while in_flight:
            await asyncio.wait(in_flight)
        for connection in connections.values():
            connection.end()

    def _note(self, reply: asyncio.Future[memoryview]) -> None:
        if reply.exception() is not None:
            self.refusals[-1000] += 1
            return
        ((_, (result,)),) = parse_produce_response(reply.result(), PRODUCE_VERSION).topics
        if result.error:
            self.refusals[result.error] += 1
            return
        self.acknowledged += 1

    async def _connected(self, broker: str) -> Connection:
        return await Connection.open(
            Address(broker, 9092), client_id="load", timeout_ms=5000, request_timeout_ms=REQUEST_TIMEOUT_MS
        )

    async def _probe(self) -> None:
        """Sends requests that need no disk, on persistent connections and on new ones."""
        await asyncio.gather(*(self._probe_one(name) for name in BROKERS))

    async def _probe_one(self, broker: str) -> None:
        loop = asyncio.get_running_loop()
        connection = await self._connected(broker)
        while not self._is_over:
            began_s = loop.time()
            if self.probes % 10 == 0:
                connection.end()
                connection = await self._connected(broker)
            await connection.request(API_VERSIONS_KEY, 0, [], what="probing")
            self.probes += 1
            if not (self.plan.hiccup_s and broker == BROKERS[1]):
                self.probe_max_s = max(self.probe_max_s, loop.time() - began_s)
            await asyncio.sleep(PROBE_EVERY_S)
        connection.end()

    # -- inside the brokers --------------------------------------------------------------------------------------

    def _replicas(self, index: int) -> dict[str, Partition]:
        found = {}
        for name, program in self._programs.items():
            topic = program.broker.topics.get(TOPIC) if program.broker is not None else None
            partition = topic.partition(index) if topic is not None else None
            if partition is not None:
                found[name] = partition
        return found

    def _leader_of(self, index: int) -> str:
        for name, partition in self._replicas(index).items():
            if partition.leading is not None:
                return name
        raise Violation("leaders", f"nobody leads partition {index}: no broker failed")

    def _is_whole(self) -> bool:
        for index in range(self.plan.partitions):
            replicas = self._replicas(index).values()
            leading = [each for each in replicas if each.leading is not None]
            if len(replicas) != 3 or len(leading) != 1 or len(leading[0].placement.isr) != 3:
                return False
            if {each.log.end_offset for each in replicas} != {leading[0].high_watermark}:
                return False
        return True

    def _watch_isr(self) -> None:
        for index in range(self.plan.partitions):
            for partition in self._replicas(index).values():
                if partition.leading is not None and len(partition.leading.proposed or partition.leading.isr) < 3:
                    self.isr_shrinks += 1
        self.world.after(0.05, self._watch_isr)

    def _compare_logs(self) -> None:
        """Checks that nothing is duplicated: no record was sent twice."""
        total = self._committed_count()
        if total != self.acknowledged:
            raise Violation("records", f"{self.acknowledged} were acknowledged, {total} are there")

    # -- tests ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        if self.refusals:
            raise Violation("refusals", f"requests failed under load: {dict(self.refusals)}\n{self.plan}")
        self._compare_logs()
        if self.isr_shrinks:
            raise Violation("isr", f"replicas left the ISR under load ({self.isr_shrinks} looks)\n{self.plan}")
        if self.probe_max_s > PROBE_MAX_S:
            raise Violation("probe", f"another client waited {self.probe_max_s * 1000:.0f} ms\n{self.plan}")
        if self.goodput < GOODPUT_SHARE * self.peak:
            share = self.goodput / max(self.peak, 1.0)
            raise Violation("goodput", f"{share:.0%} of the peak of {self.peak:.0f} bytes/s\n{self.plan}")
        if not self.probes or not self.peak:
            raise Violation("load", f"nothing was measured\n{self.plan}")
