"""What one seed of the simulation of long logs looks like: topics that roll, expire and are compacted, on racks."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ottla.client.producer.settings import Acks
from ottla.protocol.model.durability import Durability
from tests.simulation.cluster_plan import PRODUCERS, ClusterPlan, PlannedTopic, RunOptions
from tests.simulation.state_faults import SEEDS_FROM

KEPT, RECENT, LATEST, BOTH, PASSING = "kept", "recent", "latest", "both", "passing"
RACKS = ("a", "b", "c")
SEGMENT_BYTES = (1024, 2048, 4096)
ACTIONS = (
    *("delete records", "delete records", "delete records", "alter segments", "alter retention"),
    *("add partitions", "reassign", "prefer leaders"),
)
MEMORY_SHARE = 0.6
"""Share of the seeds with a topic of the class `memory`."""
COMPACTION = {
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1500",
}


def drawn_plan(seed: int, options: RunOptions) -> ClusterPlan:
    """Draws the faults as every cluster has them, and other topics, producers and actions."""
    plan = ClusterPlan.drawn(seed, options)
    rng = Random(f"{seed}/long")
    acks: dict[str, Acks] = dict.fromkeys(PRODUCERS, "all")
    acks[PRODUCERS[-1]] = rng.choice(("all", 1, 1))
    count = rng.choice((2, 6, 12))
    actions = sorted((rng.random() * options.faults_s, rng.choice(ACTIONS)) for _ in range(count))
    topics = _drawn_topics(rng)
    if seed >= SEEDS_FROM and rng.random() < MEMORY_SHARE:
        topics.append(PlannedTopic(PASSING, Durability.MEMORY, 1, 3, rng.choice((2, 2, 1)), drawn_retention(rng)))
    return replace(plan, topics=tuple(topics), acks=acks, actions=tuple(actions))


def _drawn_topics(rng: Random) -> list[PlannedTopic]:
    def topic(name: str, partitions: int, configs: dict[str, str], durability: Durability) -> PlannedTopic:
        segments = {"segment.bytes": str(rng.choice(SEGMENT_BYTES)), "index.interval.bytes": rng.choice(("0", "512"))}
        return PlannedTopic(name, durability, partitions, 3, rng.choice((2, 2, 2, 1)), {**segments, **configs})

    topics = [
        topic(KEPT, 1, {"retention.ms": "-1"}, Durability.DISK),
        topic(LATEST, 2, {"cleanup.policy": "compact", **COMPACTION}, Durability.DISK),
        topic(RECENT, 1, drawn_retention(rng), rng.choice((Durability.DISK, Durability.CACHE))),
    ]
    if rng.random() < 0.4:
        both = {"cleanup.policy": "compact,delete", **COMPACTION, **drawn_retention(rng)}
        topics.append(topic(BOTH, 1, both, rng.choice((Durability.DISK, Durability.CACHE))))
    return topics


def drawn_retention(rng: Random) -> dict[str, str]:
    by_time, by_size = (
        {"retention.ms": rng.choice(("1000", "3000"))},
        {"retention.bytes": rng.choice(("4096", "16384"))},
    )
    return rng.choice((by_time, {"retention.ms": "-1", **by_size}, {**by_time, **by_size}))
