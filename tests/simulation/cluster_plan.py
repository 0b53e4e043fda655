"""The plan that a seed determines for a simulated cluster: brokers, topics, producers, faults, operator actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from ottla.client.producer.settings import Acks
from ottla.protocol.model.durability import Durability
from ottla.sim.disk_fault_plan import DiskFaultKind, DiskFaultPlan
from ottla.sim.fault_plan import FaultKind, FaultPlan, PlannedFault

PRODUCERS = ("producer-1", "producer-2", "producer-3")
CONSUMERS = ("consumer-1", "consumer-2")
OPERATOR = "operator"
FAULTS_S = 15.0
ALL_AT_ONCE_SHARE = 0.15
KINDS = (FaultKind.KILL, FaultKind.POWER_CUT, FaultKind.PAUSE, FaultKind.PARTITION, *FaultKind)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run that its seed does not determine."""

    faults_s: float = FAULTS_S
    disk_kinds: tuple[DiskFaultKind, ...] = tuple(DiskFaultKind)
    """The kinds of disk faults to choose from."""


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    name: str
    durability: Durability
    partitions: int
    factor: int
    min_insync: int
    configs: dict[str, str] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        durable = {"ottla.durability": str(self.durability), "min.insync.replicas": str(self.min_insync)}
        configs = {**durable, **self.configs}
        return {"partitions": self.partitions, "replication_factor": self.factor, "configs": configs}

    def __str__(self) -> str:
        copies = f"{self.partitions} partitions, {self.factor} replicas, {self.min_insync} in sync"
        configs = "".join(f", {name}={value}" for name, value in self.configs.items())
        return f"topic {self.name} ({self.durability}): {copies}{configs}"


@dataclass(frozen=True, slots=True)
class StoreTrouble:
    """A fault of the coordination store."""

    at_s: float
    duration_s: float
    kind: str
    host: str = ""

    @property
    def ends_s(self) -> float:
        return self.at_s + self.duration_s

    def __str__(self) -> str:
        return f"{self.at_s:8.3f} s to {self.ends_s:8.3f} s: {self.kind} {self.host}".rstrip()


STORE_TROUBLES = ("store outage", "store outage", "store cut off", "store cut off", "lost lease", "forgotten history")
ACTIONS = ("reassign", "reassign", "prefer leaders", "add partitions", "create topic", "delete topic")


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    brokers: tuple[str, ...]
    topics: tuple[PlannedTopic, ...]
    acks: dict[str, Acks]
    """The acks setting of each producer. Those with "all" are idempotent."""
    faults: FaultPlan
    disk_faults: DiskFaultPlan
    store_troubles: tuple[StoreTrouble, ...]
    actions: tuple[tuple[float, str], ...]
    sync_ms: float
    store_delay_ms: tuple[float, float]
    watch_lag_ms: tuple[float, float]
    break_share: float
    expiry_slack_ms: float
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def ends_s(self) -> float:
        """The time at which the last fault ends."""
        ends = [self.faults.ends_s, self.disk_faults.ends_s, *(trouble.ends_s for trouble in self.store_troubles)]
        return max(ends)

    @property
    def clients(self) -> tuple[str, ...]:
        return (*PRODUCERS, *CONSUMERS, OPERATOR)

    def __str__(self) -> str:
        weak = [f"{name} has acks={acks}" for name, acks in self.acks.items() if acks != "all"]
        store = f"store: {self.store_delay_ms} ms, watches {self.watch_lag_ms} ms, breaks {self.break_share}"
        lines = [f"{len(self.brokers)} brokers, syncs {self.sync_ms} ms; {store}", *map(str, self.topics), *weak]
        lines += [*map(str, self.faults.faults), *map(str, self.disk_faults.faults), *map(str, self.store_troubles)]
        lines += [f"{at_s:8.3f} s: {action}" for at_s, action in self.actions]
        return "\n".join(lines)

    @classmethod
    def drawn(cls, seed: int, options: RunOptions) -> ClusterPlan:
        rng = Random(f"{seed}/cluster")
        duration_s = options.faults_s
        brokers = tuple(f"broker-{number}" for number in range(1, rng.choice((3, 3, 3, 4, 5)) + 1))
        disk_fault_count = rng.choice((0, 1, 2, 4)) if options.disk_kinds else 0
        density = duration_s / FAULTS_S
        return cls(
            brokers=brokers,
            topics=tuple(_drawn_topics(rng)),
            acks={name: rng.choice(("all", 1, 0)) if name == PRODUCERS[-1] else "all" for name in PRODUCERS},
            faults=_drawn_faults(seed, round(rng.randint(2, 9) * density), brokers, duration_s),
            disk_faults=DiskFaultPlan.drawn(
                seed,
                servers=brokers,
                duration_s=duration_s,
                count=round(disk_fault_count * density),
                kinds=options.disk_kinds,
            ),
            store_troubles=tuple(_drawn_store_troubles(rng, brokers, duration_s)),
            actions=tuple(_drawn_actions(rng, duration_s)),
            sync_ms=rng.choice((0.2, 10.0, 50.0)),
            store_delay_ms=rng.choice(((0.1, 1.0), (1.0, 30.0))),
            watch_lag_ms=rng.choice(((0.1, 1.0), (1.0, 300.0))),
            break_share=rng.choice((0.0, 0.0, 0.05)),
            expiry_slack_ms=rng.choice((0.0, 1000.0)),
        )


def _drawn_faults(seed: int, count: int, brokers: tuple[str, ...], duration_s: float) -> FaultPlan:
    """Draws the faults. Sometimes all brokers go down at once, by kill -9 or a power cut."""
    clients = [*PRODUCERS, *CONSUMERS]
    plan = FaultPlan.drawn(seed, servers=brokers, clients=clients, duration_s=duration_s, count=count, kinds=KINDS)
    rng = Random(f"{seed}/all at once")
    if rng.random() > ALL_AT_ONCE_SHARE:
        return plan
    kind = rng.choice((FaultKind.KILL, FaultKind.POWER_CUT))
    at_s, keep = duration_s * rng.uniform(0.2, 0.8), rng.choice(("some", "none"))
    late_s = rng.choice((0.0, 0.5))
    together = [
        PlannedFault(at_s + rng.random() * late_s, rng.choice((0.2, 1.0, 3.0)), kind, (broker,), keep=keep)
        for broker in brokers
    ]
    return FaultPlan(tuple(sorted((*plan.faults, *together), key=lambda fault: fault.at_s)))


def _drawn_topics(rng: Random) -> list[PlannedTopic]:
    topics = [PlannedTopic("orders", Durability.DISK, 2, 3, rng.choice((2, 2, 2, 1, 3)))]
    if rng.random() < 0.4:
        topics.append(PlannedTopic("views", Durability.CACHE, 1, 3, rng.choice((2, 2, 1))))
    if rng.random() < 0.4:
        topics.append(PlannedTopic("ticks", Durability.MEMORY, 1, 3, rng.choice((2, 2, 1))))
    return topics


def _drawn_store_troubles(rng: Random, brokers: tuple[str, ...], duration_s: float) -> list[StoreTrouble]:
    troubles = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        at_s = rng.random() * duration_s
        lasts_s = min(rng.choice((0.5, 3.0, 8.0)), duration_s - at_s)
        kind = rng.choice(STORE_TROUBLES)
        if kind in ("lost lease", "forgotten history"):
            lasts_s = 0.0
        host = rng.choice(brokers) if kind in ("store cut off", "lost lease") else ""
        troubles.append(StoreTrouble(at_s, lasts_s, kind, host))
    return sorted(troubles, key=lambda trouble: trouble.at_s)


def _drawn_actions(rng: Random, duration_s: float) -> list[tuple[float, str]]:
    count = rng.choice((0, 0, 2, 5))
    return sorted((rng.random() * duration_s, rng.choice(ACTIONS)) for _ in range(count))
