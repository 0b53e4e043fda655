"""The keys of the cluster state in the coordination store (ADR 7)."""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from ottla.machines.controller.state import PartitionKey
from ottla.protocol.model.ids import TopicId

CONTROLLER = "controller"
DEFAULT = "default"
"""Name of the dynamic configuration that applies to all brokers."""


def broker(broker_id: int) -> str:
    """Returns the key of a live broker's registration; it expires with the broker's lease."""
    return f"brokers/{broker_id}"


def incarnation(broker_id: int) -> str:
    """Returns the key of a broker's last incarnation, which outlives it."""
    return f"incarnations/{broker_id}"


def failures(broker_id: int) -> str:
    """Returns the key of a broker's failed logs."""
    return f"failures/{broker_id}"


def topic(topic_id: TopicId) -> str:
    """Returns the key of a topic."""
    return f"topics/{topic_id}"


def name(topic_name: str) -> str:
    """Returns the key that maps a topic name to its id."""
    return f"names/{topic_name}"


def partition(key: PartitionKey) -> str:
    """Returns the key of a partition's replicas, leader and ISR."""
    return f"partitions/{key.topic_id}/{key.partition}"


def creating(topic_id: TopicId) -> str:
    """Returns the key that exists while a topic is being created."""
    return f"creating/{topic_id}"


def deleted(topic_id: TopicId) -> str:
    """Returns the key that exists until all brokers have removed the logs of a deleted topic."""
    return f"deleted/{topic_id}"


def configs(broker_id_or_default: str) -> str:
    """Returns the key of the dynamic settings of a broker, or of all brokers (`default`)."""
    return f"configs/{broker_id_or_default}"


def read_number(text: str) -> int | None:
    """Parses a broker id or a partition index. Only the canonical form is accepted, so that no two keys
    mean the same."""
    if not (text.isascii() and text.isdecimal()) or (len(text) > 1 and text.startswith("0")):
        return None
    return int(text)


@lru_cache(maxsize=1024)
def read_topic_id(text: str) -> TopicId | None:
    """Parses a topic id. Recent results are cached, because the partitions of a topic follow one another."""
    try:
        found = UUID(text)
    except ValueError:
        return None
    return TopicId(found) if str(found) == text else None


def read_partition(text: str) -> PartitionKey | None:
    """Parses the part of a partition's key after its prefix. Returns None unless it is canonical."""
    topic_text, _, index_text = text.partition("/")
    topic_id, index = read_topic_id(topic_text), read_number(index_text)
    return None if topic_id is None or index is None else PartitionKey(topic_id, index)
