"""The topics of a broker, by name and by id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ottla.broker.partition.layout import Layout
from ottla.broker.partition.partition import Partition
from ottla.broker.traffic import TopicTraffic
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId
from ottla.protocol.model.topic_config import TopicConfig
from ottla.protocol.model.topic_names import check_name, metric_name

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(slots=True, eq=False)
class Topic:
    """A topic, with its partitions on this broker."""

    name: str
    id: TopicId
    config: TopicConfig
    overrides: dict[str, str]
    created_ms: int
    partitions: list[Partition] = field(default_factory=list)
    """The partitions that have a replica on this broker."""
    spread: list[Layout] | None = None
    """The layout of all partitions in a cluster; None on a single broker."""
    traffic: TopicTraffic = field(default_factory=TopicTraffic)

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def layouts(self) -> list[Layout]:
        """The layouts of all partitions."""
        return [partition.layout for partition in self.partitions] if self.spread is None else self.spread

    @property
    def partition_count(self) -> int:
        """Number of partitions in the whole cluster, with or without a replica on this broker."""
        return len(self.partitions) if self.spread is None else len(self.spread)

    @property
    def replication_factor(self) -> int:
        """Number of replicas of the first partition; 1 if the topic has no partitions."""
        layouts = self.layouts
        return len(layouts[0].replicas) if layouts else 1

    def partition(self, index: int) -> Partition | None:
        """Returns the partition, or None if it has no replica here."""
        if 0 <= index < len(self.partitions) and self.partitions[index].index == index:
            return self.partitions[index]  # every partition up to this one is here
        if self.spread is None:
            return None
        return next((partition for partition in self.partitions if partition.index == index), None)

    def has(self, index: int) -> bool:
        """Whether the topic has a partition with this index."""
        return 0 <= index < self.partition_count


class Topics:
    """All topics that a broker knows."""

    __slots__ = ("_by_id", "_by_name", "_metric_names", "version")

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self._metric_names: dict[str, str] = {}
        self.version = 0
        """Incremented by every change, so that encoded metadata can be cached."""

    def __iter__(self) -> Iterator[Topic]:
        return iter(sorted(self._by_name.values(), key=lambda topic: topic.name))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        """Returns the topic with this name, or None."""
        return self._by_name.get(name)

    def by_id(self, topic_id: TopicId) -> Topic | None:
        """Returns the topic with this id, or None."""
        return self._by_id.get(topic_id)

    def add(self, topic: Topic) -> None:
        """Adds a topic under its name, its id and its metric name."""
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self._metric_names[metric_name(topic.name)] = topic.name
        self.version += 1

    def remove(self, topic: Topic) -> None:
        """Removes a topic. Raises KeyError if it is not here."""
        del self._by_name[topic.name], self._by_id[topic.id]
        self._metric_names.pop(metric_name(topic.name), None)
        self.version += 1

    def changed(self) -> None:
        """Notes a change of a topic, such as new partitions."""
        self.version += 1

    def check_new_name(self, name: str) -> Refused | None:
        """Returns the reason why a topic cannot have this name, if any."""
        refused = check_name(name)
        if refused is not None:
            return refused
        if name in self._by_name:
            return Refused(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        similar = self._metric_names.get(metric_name(name))
        if similar is not None:
            return Refused(
                ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topics: {similar}"
            )
        return None
