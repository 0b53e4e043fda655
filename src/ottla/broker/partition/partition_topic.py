"""The topic from the point of view of one of its partitions."""

from __future__ import annotations

from typing import Protocol

from ottla.broker.traffic import TopicTraffic
from ottla.protocol.model.ids import TopicId
from ottla.protocol.model.topic_config import TopicConfig


class PartitionTopic(Protocol):
    """The topic of a partition: its identity, its configuration and its counters."""

    @property
    def name(self) -> str:
        """The name of the topic."""
        ...

    @property
    def id(self) -> TopicId:
        """The id of the topic. A topic that is deleted and created again gets another one."""
        ...

    @property
    def internal(self) -> bool:
        """Whether the topic belongs to a coordinator, so that producers cannot append to it."""
        ...

    @property
    def config(self) -> TopicConfig:
        """The effective configuration: the broker's defaults with the topic's overrides."""
        ...

    @property
    def traffic(self) -> TopicTraffic:
        """Counters of the records written to and read from this broker."""
        ...
