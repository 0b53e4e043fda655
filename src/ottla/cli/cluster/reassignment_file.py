"""Reads and writes plans as JSON, in the format of Kafka's own tool (`kafka-reassign-partitions`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ottla.cli.failures import CommandError
from ottla.client.consumer.types import TopicPartition

Targets = dict[TopicPartition, tuple[int, ...]]


def read_plan(path: Path) -> Targets:
    """Reads a plan. Raises FailedError with a message that says what is wrong."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as cause:
        raise CommandError(f"the plan {path} cannot be read: {cause.strerror}") from cause
    except (UnicodeDecodeError, json.JSONDecodeError) as cause:
        raise CommandError(f"the plan {path} is not JSON: {cause}") from cause
    entries = tree.get("partitions") if isinstance(tree, dict) else None
    if not isinstance(entries, list) or tree.get("version", 1) != 1:
        raise CommandError(f'{path} is not a reassignment plan: it must contain {{"version": 1, "partitions": [...]}}')
    targets: Targets = {}
    for number, entry in enumerate(entries, 1):
        at, replicas = _entry(entry, f"{path}, partition {number} of the list")
        if at in targets:
            raise CommandError(f"{path} contains {at} twice")
        targets[at] = replicas
    if not targets:
        raise CommandError(f"{path} contains no partitions")
    return targets


def _entry(entry: Any, where: str) -> tuple[TopicPartition, tuple[int, ...]]:
    try:
        topic, partition, replicas = entry["topic"], entry["partition"], entry["replicas"]
    except (KeyError, TypeError) as cause:
        raise CommandError(f"{where}: it needs topic, partition and replicas") from cause
    if not isinstance(topic, str) or not _is_id(partition):
        raise CommandError(f"{where}: topic must be a string and partition a number")
    if not isinstance(replicas, list) or not replicas or not all(map(_is_id, replicas)):
        raise CommandError(f"{where}: replicas must be a list of broker ids")
    if any(directory != "any" for directory in entry.get("log_dirs") or []):
        raise CommandError(f"{where}: log_dirs is not supported; remove it")
    return TopicPartition(topic, partition), tuple(replicas)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def plan_as_json(targets: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """Returns a plan in the format of Kafka's tool."""
    return {
        "version": 1,
        "partitions": [
            {"topic": at.topic, "partition": at.partition, "replicas": list(replicas)}
            for at, replicas in sorted(targets.items())
        ],
    }
