"""What a target makes of a configuration: its topics' settings, and what it cannot do at all. Pure."""

from __future__ import annotations

from ottla.bench.suite.matrix import TargetPlan
from ottla.bench.suite.settings import Configuration, count, durability_of, number

MEMORY_BYTES_KEPT = 512 << 20
"""Of a topic in memory, half of what a broker keeps there by default: a log in its steady state, old records go."""


def problem_on(target: TargetPlan, configuration: Configuration) -> str | None:
    """Why this configuration cannot be measured there."""
    durability = durability_of(configuration)
    if target.speaks == "kafka" and durability == "memory":
        return "Apache Kafka has no topics that are kept in memory alone"
    if target.kind == "bootstrap" and configuration["storage"] == "ram-disk":
        return "the brokers run already, on the storage that they have"
    if target.kind == "bootstrap" and configuration["consumers.read"] == "disk" and _has_consumers(configuration):
        return "files of brokers that run elsewhere cannot be dropped from the page cache"
    if target.kind != "bootstrap" and count(configuration, "topic.replication") > target.brokers:
        return f"{count(configuration, 'topic.replication')} copies need as many brokers, not {target.brokers}"
    return None


def _has_consumers(configuration: Configuration) -> bool:
    return count(configuration, "consumers.clients") > 0


def topic_configs(target: TargetPlan, configuration: Configuration) -> dict[str, str]:
    """By Kafka's names. `disk` is: on stable storage before it is acknowledged, on every replica."""
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
            # A full memory refuses records: a fast producer would wait for the end of its retries.
            found["retention.bytes"] = str(MEMORY_BYTES_KEPT // count(configuration, "topic.partitions"))
    elif durability == "disk":
        found["flush.messages"] = "1"
    return found
