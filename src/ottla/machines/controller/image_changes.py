"""The set of entries that a batch of changes touched."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.machines.controller.encoding import UnreadableEntry
from ottla.machines.controller.state import PartitionKey
from ottla.protocol.model.ids import TopicId


@dataclass(slots=True)
class ImageChanges:
    """The entries that a batch of changes touched."""

    brokers: set[int] = field(default_factory=set)
    """Brokers whose registration, incarnation or failures changed."""
    topics: set[TopicId] = field(default_factory=set)
    partitions: set[PartitionKey] = field(default_factory=set)
    """Partitions that changed, appeared or disappeared, through their own entries or their topic's."""
    configs: set[str] = field(default_factory=set)
    """Broker ids as text, or `default`."""
    acls: set[str] = field(default_factory=set)
    """The ids of ACLs, which are their keys without the prefix."""
    controller: bool = False
    unreadable: list[UnreadableEntry] = field(default_factory=list)
