"""Notifies the parts of a broker of changes of its topics and partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ottla.broker.partition.partition import Partition
from ottla.broker.topics.topics import Topic


@dataclass(slots=True)
class TopicEvents:
    """Lists of listeners. Each is called in the order of registration, at once."""

    role_listeners: list[Callable[[Partition], None]] = field(default_factory=list)
    change_listeners: list[Callable[[Collection[str]], None]] = field(default_factory=list)
    config_listeners: list[Callable[[Topic], None]] = field(default_factory=list)

    def on_role(self, partition: Partition) -> None:
        """A partition may have another leader, another epoch, or no log any more."""
        for listener in self.role_listeners:
            listener(partition)

    def on_topics_changed(self, deleted: Collection[str] = ()) -> None:
        """Topics were created, deleted or got more partitions. `deleted` names the deleted ones."""
        for listener in self.change_listeners:
            listener(deleted)

    def on_configured(self, topic: Topic) -> None:
        """A topic is new, or its configuration or partitions have changed."""
        for listener in self.config_listeners:
            listener(topic)
