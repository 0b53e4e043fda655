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
    return f"brokers/{broker_id}"


def incarnation(broker_id: int) -> str:
    return f"incarnations/{broker_id}"


def failures(broker_id: int) -> str:
    return f"failures/{broker_id}"


def topic(topic_id: TopicId) -> str:
    return f"topics/{topic_id}"


def name(topic_name: str) -> str:
    return f"names/{topic_name}"


def partition(key: PartitionKey) -> str:
    return f"partitions/{key.topic_id}/{key.partition}"


def creating(topic_id: TopicId) -> str:
    return f"creating/{topic_id}"


def deleted(topic_id: TopicId) -> str:
    return f"deleted/{topic_id}"


def configs(broker_id_or_default: str) -> str:
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
    topic_text, _, index_text = text.partition("/")
    topic_id, index = read_topic_id(topic_text), read_number(index_text)
    return None if topic_id is None or index is None else PartitionKey(topic_id, index)
