"""Results of the admin client: plain values, ready for `dataclasses.asdict` and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.client.metadata import PartitionView

TOPIC = 2
BROKER = 4
SOURCES = {
    1: "topic",
    2: "broker (dynamic)",
    3: "brokers (dynamic)",
    4: "broker file",
    5: "default",
    6: "broker logger",
    7: "client metrics",
    8: "group",
}


@dataclass(frozen=True, slots=True)
class TopicListing:
    """One entry of a list of topics."""

    name: str
    id: str
    partition_count: int
    replication_factor: int
    internal: bool


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The leader, replicas, offsets and size of a partition."""

    index: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    first_offset: int | None = None
    end_offset: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration value."""

    name: str
    value: str | None
    source: str
    """Where the value comes from; `default` if it was never set."""
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """True if nobody has set the value, neither for the topic nor for the broker."""
        return self.source == "default"


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its partitions and configuration."""

    name: str
    id: str
    internal: bool
    partitions: list[PartitionDescription]
    configs: dict[str, str | None] = field(default_factory=dict)
    """Only the values set for this topic."""


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """The address of a broker."""

    id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster id, the controller and the brokers."""

    cluster_id: str
    controller_id: int
    brokers: list[BrokerDescription]


@dataclass(frozen=True, slots=True)
class LogDirPartition:
    """The size and lag of one replica on a disk."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A disk of a broker."""

    broker_id: int
    path: str
    total_bytes: int
    usable_bytes: int
    partitions: list[LogDirPartition]
    error: str | None = None
    """The broker's error for a disk that it cannot use."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition whose replicas are being moved."""

    replicas: list[int]
    """All current replicas, including those being added and removed."""
    adding: list[int]
    removing: list[int]

    @property
    def target(self) -> list[int]:
        """The replicas after the reassignment."""
        return [broker_id for broker_id in self.replicas if broker_id not in self.removing]


def describe_partition(
    view: PartitionView, ends: tuple[int, int] | None = None, size_bytes: int | None = None
) -> PartitionDescription:
    """Describes a partition. `ends` has its first and its end offset; both are None without it."""
    return PartitionDescription(
        index=view.index,
        leader=None if view.leader < 0 else view.leader,
        leader_epoch=view.leader_epoch,
        replicas=list(view.replicas),
        isr=list(view.isr),
        first_offset=None if ends is None else ends[0],
        end_offset=None if ends is None else ends[1],
        size_bytes=size_bytes,
    )
