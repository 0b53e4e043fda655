"""What a partition knows of its topic."""

from __future__ import annotations

from typing import Protocol

from ottla.broker.traffic import TopicTraffic
from ottla.protocol.model.ids import TopicId
from ottla.protocol.model.topic_config import TopicConfig


class PartitionTopic(Protocol):
    """The topic of a partition: its identity, its configuration and its counters."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> TopicId: ...

    @property
    def internal(self) -> bool: ...

    @property
    def config(self) -> TopicConfig: ...

    @property
    def traffic(self) -> TopicTraffic: ...
