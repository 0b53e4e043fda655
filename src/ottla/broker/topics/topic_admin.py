"""Creates, changes and deletes topics, and changes dynamic settings of brokers.

`TopicAdmin` has the rules that hold everywhere. `StandaloneAdmin` and `cluster.admin.ClusterAdmin` carry out what the
rules allow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from ottla.broker.context import BrokerContext
from ottla.broker.partition.layout import Layout
from ottla.broker.topics.topic_configs import DURABILITY, TopicConfigs
from ottla.broker.topics.topics import INTERNAL_TOPICS, Topic
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId

PARTITIONS_MAX = 10_000
"""Maximum number of partitions of a topic: each partition costs a file and an entry in every metadata reply."""
Assignment = Sequence[tuple[int, ...]]
"""The brokers of each partition's replicas, as requested by an administrator. The first is the preferred leader."""


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """A request to create a topic."""

    name: str
    partition_count: int
    """-1 means the broker's default."""
    configs: Mapping[str, str]
    replication_factor: int
    """-1 means the broker's default."""
    assignment: Assignment | None
    replicas_wanted: int
    validate_only: bool


class TopicAdmin(ABC):
    """Administers topics and dynamic settings."""

    has_cluster_defaults: ClassVar[bool]
    """Whether the dynamic settings of all brokers differ from those of this one."""

    def __init__(self, context: BrokerContext, configs: TopicConfigs) -> None:
        self._context = context
        self._configs = configs

    # -- topics -----------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        configs: Mapping[str, str],
        *,
        replication_factor: int = 1,
        assignment: Assignment | None = None,
        replicas_wanted: int = 0,
        validate_only: bool = False,
    ) -> Topic | Refused:
        """Creates a topic, or only validates the request. An assignment lists the replicas of each partition and so
        determines both counts.

        `replicas_wanted` is the number to which the controller of a cluster raises a smaller replication factor.
        """
        if name in INTERNAL_TOPICS:
            configs = {"cleanup.policy": "compact", **configs}
        creation = TopicCreation(
            name, partition_count, configs, replication_factor, assignment, replicas_wanted, validate_only
        )
        return await self._create_topic(creation)

    async def create_partitions(
        self, topic: Topic, total: int, *, assignment: Assignment | None = None, validate_only: bool = False
    ) -> Refused | None:
        """Increases a topic's number of partitions. An assignment lists the replicas of each new partition."""
        if topic.internal:
            what = "group" if topic.name == "__consumer_offsets" else "transactional id"
            why = f"Partitions cannot be added to {topic.name}: the partition of a {what} depends on their number."
            return Refused(ErrorCode.invalid_partitions, why)
        return await self._create_partitions(topic, total, assignment, validate_only=validate_only)

    async def alter_topic_configs(
        self, topic: Topic, overrides: Mapping[str, str], *, validate_only: bool = False
    ) -> Refused | None:
        """Replaces the overrides of a topic."""
        overrides = {DURABILITY: topic.config.durability.value, **overrides}
        config = self._configs.parse(overrides)
        if isinstance(config, Refused):
            return config
        if config.durability is not topic.config.durability:
            return Refused(
                ErrorCode.invalid_config,
                f"ottla.durability is fixed when a topic is created; '{topic.name}' is {topic.config.durability}",
            )
        return None if validate_only else await self._store_configs(topic, overrides)

    @abstractmethod
    async def delete_topic(self, topic: Topic) -> Refused | None:
        """Deletes a topic and, in the background, its logs."""

    @abstractmethod
    async def _create_topic(self, creation: TopicCreation) -> Topic | Refused: ...

    @abstractmethod
    async def _create_partitions(
        self, topic: Topic, total: int, assignment: Assignment | None, *, validate_only: bool
    ) -> Refused | None: ...

    @abstractmethod
    async def _store_configs(self, topic: Topic, overrides: Mapping[str, str]) -> Refused | None: ...

    # -- dynamic settings -------------------------------------------------------------------------------------

    @abstractmethod
    def dynamic_configs(self, broker_name: str) -> Mapping[str, str]:
        """Returns the dynamic settings of one broker, or of all brokers if the name is empty."""

    @abstractmethod
    async def alter_broker_configs(
        self, overrides: Mapping[str, str], *, broker_name: str = "", validate_only: bool = False
    ) -> Refused | None:
        """Replaces the dynamic settings of one broker, or of all brokers if the name is empty."""

    # -- for implementations ----------------------------------------------------------------------------------

    def _new_id(self) -> TopicId:
        while True:
            # Kafka reserves the ids 0 and 1.
            candidate: UUID = self._context.new_id()
            if candidate.int > 1:
                return TopicId(candidate)


def planned_layouts(assignment: Assignment) -> list[Layout]:
    """Returns the layouts that a topic would have, for a request that only validates."""
    return [Layout(index, replicas[0], 0, replicas, replicas) for index, replicas in enumerate(assignment)]
