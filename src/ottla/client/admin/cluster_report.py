"""A health report of a cluster, built from what its brokers report. Works with Apache Kafka too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ottla.client.admin.admin import Admin
from ottla.client.admin.descriptions import BrokerDescription, PartitionDescription, Reassignment
from ottla.client.admin.replica_plans import BrokerPlacement
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import ClientError

MACHINE = "ottla.host"
MIN_INSYNC = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The state of one broker."""

    id: int
    host: str
    port: int
    rack: str | None
    machine: str
    """The machine of the broker. Replicas of a partition never share a machine unless configured otherwise."""
    leaders: int
    replicas: int
    data_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_bytes: int | None = None
    problem: str | None = None
    """Why the broker's disk is unknown or unusable."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The replication state of one partition."""

    topic: str
    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    min_insync: int
    is_offline: bool
    """The partition has no leader, so it can be neither written nor read."""
    is_under_min_isr: bool
    """Writes with acks=all are rejected."""
    is_under_replicated: bool


@dataclass(frozen=True, slots=True)
class ReassignmentReport:
    """A partition whose replicas are being moved."""

    topic: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The state of the cluster and all partitions that need attention."""

    cluster_id: str
    controller: int | None
    topics: int
    partitions: int
    brokers: list[BrokerReport]
    away: list[int] = field(default_factory=list)
    """Ids of brokers that have replicas but are not in the cluster."""
    offline: list[PartitionReport] = field(default_factory=list)
    under_min_isr: list[PartitionReport] = field(default_factory=list)
    under_replicated: list[PartitionReport] = field(default_factory=list)
    reassignments: list[ReassignmentReport] = field(default_factory=list)

    @property
    def is_healthy(self) -> bool:
        """Whether all partitions are fully replicated and all brokers and disks are available."""
        failed = any(broker.problem is not None for broker in self.brokers)
        return not (self.offline or self.under_min_isr or self.under_replicated or self.away or failed)


async def report_cluster(admin: Admin) -> ClusterReport:
    """Collects the report.

    Example:

        async with Admin("127.0.0.1:9092") as admin:
            report = await report_cluster(admin)
            print(report.is_healthy, report.under_replicated)
    """
    cluster = await admin.describe_cluster()
    topics = await admin.describe_all_partitions()
    reassignments = await admin.list_partition_reassignments()
    minimums = await _minimums(admin, topics)
    partitions = [
        _partition(name, each, minimums.get(name), reassignments.get(TopicPartition(name, each.index)))
        for name, described in topics.items()
        for each in described
    ]
    leaders = Counter(each.leader for each in partitions)
    replicas = Counter(broker_id for each in partitions for broker_id in each.replicas)
    here = {broker.id for broker in cluster.brokers}
    return ClusterReport(
        cluster_id=cluster.cluster_id,
        controller=cluster.controller_id if cluster.controller_id >= 0 else None,
        topics=len(topics),
        partitions=len(partitions),
        brokers=[
            await _broker(admin, broker, leaders[broker.id], replicas[broker.id])
            for broker in sorted(cluster.brokers, key=lambda each: each.id)
        ],
        away=sorted(broker_id for broker_id in replicas if broker_id not in here),
        offline=[each for each in partitions if each.is_offline],
        under_min_isr=[each for each in partitions if each.is_under_min_isr],
        under_replicated=[each for each in partitions if each.is_under_replicated],
        reassignments=[
            ReassignmentReport(at.topic, at.partition, each.replicas, each.adding, each.removing)
            for at, each in sorted(reassignments.items())
        ],
    )


async def seats(admin: Admin) -> list[BrokerPlacement]:
    """Returns the live brokers in the form that replica plans need."""
    cluster = await admin.describe_cluster()
    return [BrokerPlacement(broker.id, await _machine(admin, broker), broker.rack) for broker in cluster.brokers]


def _partition(
    topic: str, described: PartitionDescription, minimum: int | None, moving: Reassignment | None
) -> PartitionReport:
    """Builds a partition's report. A replica being added is not missing, and one being removed need not be in sync."""
    settled = described.replicas if moving is None else [each for each in moving.target if each not in moving.adding]
    expected = len(described.replicas) if moving is None else len(moving.target)
    needed = expected // 2 + 1 if minimum is None else minimum
    return PartitionReport(
        topic=topic,
        partition=described.index,
        leader=described.leader,
        replicas=described.replicas,
        isr=described.isr,
        min_insync=needed,
        is_offline=described.leader is None,
        is_under_min_isr=len(described.isr) < needed,
        is_under_replicated=not set(settled) <= set(described.isr),
    )


async def _minimums(admin: Admin, topics: Iterable[str]) -> Mapping[str, int]:
    """Returns the topics' settings. A topic that is missing has Ottla's default, a majority of the replicas."""
    found = await admin.describe_topic_configs(topics, MIN_INSYNC)
    return {name: int(value) for name, value in found.items() if value is not None and value.isdecimal()}


async def _machine(admin: Admin, broker: BrokerDescription) -> str:
    try:
        configs = await admin.describe_configs(broker_id=broker.id)
    except ClientError:
        return broker.host
    return next((entry.value for entry in configs if entry.name == MACHINE and entry.value), broker.host)


async def _broker(admin: Admin, broker: BrokerDescription, leaders: int, replicas: int) -> BrokerReport:
    counted = {"leaders": leaders, "replicas": replicas}
    machine = await _machine(admin, broker)
    try:
        disks = await admin.describe_log_dirs(broker_id=broker.id)
    except ClientError as failure:
        return BrokerReport(broker.id, broker.host, broker.port, broker.rack, machine, **counted, problem=str(failure))
    failed = [f"{disk.path}: {disk.error}" for disk in disks if disk.error is not None]
    return BrokerReport(
        broker.id,
        broker.host,
        broker.port,
        broker.rack,
        machine,
        **counted,
        data_bytes=sum(each.size_bytes for disk in disks for each in disk.partitions),
        disk_free_bytes=_known(disk.usable_bytes for disk in disks),
        disk_bytes=_known(disk.total_bytes for disk in disks),
        problem="; ".join(failed) or None,
    )


def _known(sizes: Iterable[int]) -> int | None:
    """Returns the sum, or None unless every disk reports its size."""
    known = list(sizes)
    return sum(known) if known and min(known) >= 0 else None
