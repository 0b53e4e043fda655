"""The append stream and `ottla.wal` on simulated hosts: brokers, writers and fencing clients under every kind of fault.

Everything that clients observed is checked against the log at the end for linearizability, with the model of
`tests/processes/wal_history`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.coordination import SimCoordination
from ottla.sim.fault_plan import FaultKind, FaultPlan, PlannedFault
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld
from ottla.wal import (
    FencedError,
    InvalidRequestError,
    Log,
    LogSettings,
    TooMuchInFlightError,
    UnavailableError,
    UnexpectedEndError,
    UnknownOutcomeError,
    WalError,
)
from ottla.wal.values import Limits
from tests.processes.wal_history import Operation, violations
from tests.simulation.state_faults import POWER_CUT, SEEDS_FROM, StateFaults
from tests.simulation.survivors import Survivors
from tests.simulation.violations import Violation

BROKERS = (1, 2, 3)
WRITERS = ("writer-1", "writer-2", "writer-3")
RULERS = ("ruler-1", "ruler-2")
FAULTS_S = 12.0
LIMITS = Limits(patience_s=300)
SERVERS = ",".join(f"broker-{number}:9192" for number in BROKERS)
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "2000",
    "default.replication.factor": "3",
    "ottla.wal.port": "9192",
}


class WalRun:
    """One seed."""

    leader_changes = 0

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.fault_counts: Counter[str] = Counter()
        self.chance = Random(f"{seed}/wal")
        self.world = SimWorld(seed)
        self.history: list[Operation] = []
        self.handles: dict[Log, int] = {}
        self.is_ending = False
        self.durability = self.chance.choice(["disk", "disk", "cache"])
        store = SimCoordination(self.world.clock, seed=seed)
        programs = {f"broker-{number}": ClusterProgram(store, number, PROPERTIES) for number in BROKERS}
        for name, program in programs.items():
            self.world.host(name, program=program)
        self.clients = [self.world.host(name) for name in (*WRITERS, *RULERS, "reader")]
        # A power cut on a majority may lose records that only the page cache had, as the class permits.
        kinds = [kind for kind in FaultKind if self.durability == "disk" or kind is not FaultKind.POWER_CUT]
        without = () if self.durability == "disk" else (POWER_CUT,)
        self.state_faults = StateFaults(seed, self.world, programs, self.fault_counts, Survivors(), without=without)
        self.plan = FaultPlan.drawn(
            seed,
            servers=[f"broker-{number}" for number in BROKERS],
            clients=[*WRITERS, *RULERS],
            duration_s=FAULTS_S,
            kinds=kinds,
        )

    @property
    def acknowledged(self) -> int:
        return sum(each.outcome == "done" for each in self.history)

    def execute(self) -> None:
        self.run()

    def check(self) -> None:
        """`run` has compared all that clients saw with the logs."""

    def _on_struck(self, fault: PlannedFault) -> None:
        self.fault_counts[fault.kind.value] += 1

    def run(self) -> str:
        with self.state_faults.observing(), self.world:
            self.world.boot_all()
            reader = self.world.hosts["reader"]
            reader.loop.run_until_complete(self.create())
            self.plan.start(self.world, self._on_struck)
            if self.seed >= SEEDS_FROM:
                self.state_faults.ends_s = self.world.now_s + FAULTS_S
            works = [self.world.hosts[name].spawn(self.write(self.world.hosts[name])) for name in WRITERS]
            works += [self.world.hosts[name].spawn(self.rule(self.world.hosts[name])) for name in RULERS]
            works.append(reader.spawn(self.cut()))
            ends_s = self.plan.ends_s + 1
            self.world.run_until(lambda: self.world.now_s > ends_s, timeout_s=600)
            self.is_ending = True
            for work in works:
                self.world.run_until(work.done, timeout_s=1200)
            for work in works:
                work.result()
            shared = reader.loop.run_until_complete(self.read("shared"))
            ruled = reader.loop.run_until_complete(self.read("ruled"))
        found = violations([each for each in self.history if each.writer.startswith("writer")], shared)
        found += violations([each for each in self.history if each.writer.startswith("ruler")], ruled)
        if found:
            raise Violation("linearizable", "\n".join(found[:10]))
        return f"{len(shared)} + {len(ruled)} records, {len(self.history)} operations"

    async def create(self) -> None:
        for topic in ("shared", "ruled"):
            settings = LogSettings(replicas=3, durability=self.durability)
            while True:
                try:
                    log = await Log.open(SERVERS, topic, create=settings, limits=LIMITS)
                except InvalidRequestError:  # not all brokers are registered yet
                    await asyncio.sleep(0.1)
                else:
                    break
            await log.close()

    async def read(self, topic: str) -> list[tuple[int, bytes]]:
        log = await Log.open(SERVERS, topic, limits=LIMITS)
        found = [(entry.offset, entry.data) async for entry in log.read(0)]
        await log.close()
        return found

    async def cut(self) -> None:
        """Resets connections all the time with records in flight: writers reconnect and learn their outcome."""
        while not self.is_ending:
            await asyncio.sleep(0.1 + self.chance.random() * 0.5)
            names = [f"broker-{number}" for number in BROKERS]
            self.world.network.reset([self.chance.choice([*WRITERS, *RULERS])], names)

    # -- clients ------------------------------------------------------------------------------------------------

    async def write(self, host: SimHost) -> None:
        """Writes with many requests in flight, some of them conditional, to a shared log."""
        count = 0
        while not self.is_ending:
            log = await Log.open(SERVERS, "shared", limits=LIMITS)
            waiting: list[asyncio.Task[None]] = []
            # A writer that does not wait for replies has more batches in flight than the log remembers.
            pause_s = self.chance.choice([0.1, 0.1, 0.002])
            for _ in range(self.chance.randrange(1, 60)):
                for _ in range(self.chance.randrange(1, 6)):
                    value = f"{host.name} {count}".encode()
                    expected = self.chance.randrange(0, count + 2) if self.chance.random() < 0.1 else None
                    waiting.append(self.append(log, host, value, expected, 0))
                    count += 1
                await asyncio.sleep(self.chance.random() * pause_s)
            if self.chance.random() < 0.6:
                await asyncio.gather(*waiting)
            await log.close()
            await asyncio.gather(*waiting)

    async def rule(self, host: SimHost) -> None:
        count = 0
        while not self.is_ending:
            fence = Operation("fence", host.name, self.world.now_s)
            self.history.append(fence)
            log = await Log.open(SERVERS, "ruled", fence=True, limits=LIMITS)
            fence.ended_s, fence.outcome = self.world.now_s, "done"
            fence.epoch, fence.offset = log.epoch or 0, log.fence_offset or 0
            waiting: list[asyncio.Task[None]] = []
            for _ in range(self.chance.randrange(1, 40)):
                waiting.append(self.append(log, host, f"{host.name} {count}".encode(), None, log.epoch or 0))
                count += 1
                if self.chance.random() < 0.3:
                    await asyncio.sleep(self.chance.random() * 0.6)
            await asyncio.gather(*waiting)
            await log.close()

    def append(self, log: Log, host: SimHost, value: bytes, expected: int | None, epoch: int) -> asyncio.Task[None]:
        """Appends; its position in the handle's order is fixed at the call."""
        operation = Operation("append", host.name, self.world.now_s, value=value, expected_end=expected, epoch=epoch)
        operation.handle = self.handles.setdefault(log, len(self.handles) + 1)
        self.history.append(operation)
        future: asyncio.Future[int] | WalError
        try:
            future = log.append(value, expected_end=expected)
        except (FencedError, TooMuchInFlightError) as error:
            future = error
        except InvalidRequestError as error:
            raise Violation("requests", f"{operation.value!r}: {error}") from error
        return asyncio.ensure_future(self.settle(operation, future))

    async def settle(self, operation: Operation, future: asyncio.Future[int] | WalError) -> None:
        try:
            if isinstance(future, WalError):
                raise future
            operation.offset, operation.outcome = await future, "done"
        except UnexpectedEndError as error:
            operation.offset, operation.outcome = error.end, "unexpected end"
        except FencedError:
            operation.outcome = "fenced"
        except (UnavailableError, TooMuchInFlightError):
            operation.outcome = "refused"
        except InvalidRequestError as error:
            raise Violation("requests", f"{operation.value!r}: {error}") from error
        except UnknownOutcomeError as error:
            # Nothing is trimmed here: a log that knows a writer knows what it wrote. A closed handle does not.
            if operation.expected_end is None and "acknowledgement was lost with the connection" in str(error):
                raise Violation("resumed", f"{operation.value!r}: {error}") from error
            return
        except WalError:
            return  # unknown
        operation.ended_s = self.world.now_s
