"""`__consumer_offsets`: made when a group is first asked for, as in Kafka.

**How many replicas.** `offsets.topic.replication.factor` says it, and if an operator has set it, groups wait until
there are as many brokers, as with Kafka: a topic that was made with one replica in the second in which only one of
three brokers had started would keep that replica, and lose every group with its disk. If nobody has set it, it is 3,
and a smaller cluster has one on each of its brokers, so that one broker works by itself. For that a cluster must be
known to be small, and not only young: with fewer than three brokers, the topic is made when no other broker has shown
up for some time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.broker.topics import Topic
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.model.errors import ErrorCode, Refused
from ottla.model.group_keys import OFFSETS_REPLICATION_FACTOR

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.groups")

SETTLED_AFTER_MS = 5000.0
"""A cluster whose brokers are the same for this long is taken for whole."""


class OffsetsTopic:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._creating = asyncio.Lock()
        self._brokers: frozenset[int] = frozenset()
        self._brokers_since_ms = 0.0

    async def ensure(self) -> Topic | Refused:
        topic = self._broker.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            return topic
        async with self._creating:
            return await self._ensure()

    async def _ensure(self) -> Topic | Refused:
        broker = self._broker
        if broker.cluster is not None and broker.topics.get(OFFSETS_TOPIC) is None:
            # Another broker may have made it a moment ago.
            refused = await broker.cluster.refresh()
            if refused is not None:
                return refused
        topic = broker.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            return topic
        factor = self._replication_factor()
        if isinstance(factor, Refused):
            return factor
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(broker.config.offsets_topic_segment_bytes),
        }
        count = broker.config.offsets_topic_num_partitions
        created = await broker.create_topic(OFFSETS_TOPIC, count, configs, replication_factor=factor)
        if isinstance(created, Refused):
            if created.error is ErrorCode.topic_already_exists:
                return broker.topics.get(OFFSETS_TOPIC) or created
            log.warning("%s could not be created: %s", OFFSETS_TOPIC, created.message)
        else:
            log.info("%s was created, with %d partitions of %d replicas", OFFSETS_TOPIC, count, factor)
        return created

    def _replication_factor(self) -> int | Refused:
        broker = self._broker
        wanted = broker.config.offsets_topic_replication_factor
        if broker.cluster is None:
            return 1
        brokers = frozenset(node.id for node in broker.nodes())
        if len(brokers) >= wanted or OFFSETS_REPLICATION_FACTOR in broker.config.given:
            return wanted  # with too few brokers, whoever places the replicas refuses, and says why
        now_ms = broker.clock.monotonic_ms()
        if brokers != self._brokers:
            self._brokers, self._brokers_since_ms = brokers, now_ms
        if now_ms - self._brokers_since_ms < SETTLED_AFTER_MS or not brokers:
            return Refused(
                ErrorCode.leader_not_available,  # in the words of Metadata, which makes it too
                f"{OFFSETS_TOPIC} is not there yet: {len(brokers)} of {wanted} brokers have started; it is made on "
                f"these if no other one joins within {SETTLED_AFTER_MS / 1000:g} s",
            )
        return len(brokers)
