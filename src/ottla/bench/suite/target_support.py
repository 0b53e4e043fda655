"""Maps a configuration to a target: the settings of its topics, and what the target does not support. Pure."""

from __future__ import annotations

from ottla.bench.suite.matrix import TargetPlan
from ottla.bench.suite.settings import Configuration, count, durability_of, number

MEMORY_BYTES_KEPT = 512 << 20
"""The size of a topic in memory, half of a broker's default, which makes a steady state that deletes old records."""


def problem_on(target: TargetPlan, configuration: Configuration) -> str | None:
    """Returns why this configuration cannot be measured on the target, or None if it can."""
    durability = durability_of(configuration)
    if target.speaks == "kafka" and durability == "memory":
        return "Apache Kafka has no topics that are kept only in memory"
    if target.kind == "bootstrap" and configuration["storage"] == "ram-disk":
        return "the brokers are already running, with their own storage"
    if target.kind == "bootstrap" and configuration["consumers.read"] == "disk" and _has_consumers(configuration):
        return "files of brokers that run elsewhere cannot be dropped from the page cache"
    if target.kind != "bootstrap" and count(configuration, "topic.replication") > target.brokers:
        return f"{count(configuration, 'topic.replication')} replicas need as many brokers, not {target.brokers}"
    return None


def _has_consumers(configuration: Configuration) -> bool:
    return count(configuration, "consumers.clients") > 0


def topic_configs(target: TargetPlan, configuration: Configuration) -> dict[str, str]:
    """Returns topic settings under Kafka's names. `disk` means synced on every replica before it is acknowledged."""
    replication = count(configuration, "topic.replication")
    found = {
        "min.insync.replicas": str(count(configuration, "topic.min_insync") or replication // 2 + 1),
        "retention.ms": str(int(number(configuration, "topic.retention_ms"))),
    }
    if segment_bytes := count(configuration, "topic.segment_bytes"):
        found["segment.bytes"] = str(segment_bytes)
    durability = durability_of(configuration)
    if target.speaks == "ottla":
        found["ottla.durability"] = durability
        if durability == "memory":
            # When its memory is full, a broker rejects records, and a fast producer would wait until its retries end.
            found["retention.bytes"] = str(MEMORY_BYTES_KEPT // count(configuration, "topic.partitions"))
    elif durability == "disk":
        found["flush.messages"] = "1"
    return found
