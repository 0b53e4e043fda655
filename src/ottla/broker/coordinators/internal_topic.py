"""A coordinator's topic: made when somebody first asks for a coordinator, as in Kafka.

**How many replicas.** A setting says it, such as `offsets.topic.replication.factor`, and if an operator has set it,
clients wait until there are as many brokers, as with Kafka: a topic that was made with one replica in the second in
which only one of three brokers had started would keep that replica, and lose everything with its disk. If nobody has
set it, it is 3, and a smaller cluster has one on each of its brokers, so that one broker works by itself. For that a
cluster must be known to be small, and not only young: with fewer than three brokers, the topic is made when no other
broker has shown up for some time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.topics import Topic
from ottla.model.broker_config import BrokerConfig
from ottla.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.coordinators")

SETTLED_AFTER_MS = 5000.0
"""A cluster whose brokers are the same for this long is taken for whole."""


class TopicPlan(NamedTuple):
    """What the configuration says of the topic."""

    partition_count: int
    replication_factor: int
    replication_factor_key: str
    """If an operator has set it, no smaller one will do."""
    configs: Callable[[int], Mapping[str, str]]
    """By the number of replicas that the topic gets."""


class InternalTopic:
    def __init__(self, broker: Broker, name: str, plan: Callable[[BrokerConfig], TopicPlan]) -> None:
        self.name = name
        self._broker = broker
        self._plan = plan
        self._creating = asyncio.Lock()
        self._brokers: frozenset[int] = frozenset()
        self._brokers_since_ms = 0.0

    async def ensure(self) -> Topic | Refused:
        topic = self._broker.topics.get(self.name)
        if topic is not None:
            return topic
        async with self._creating:
            return await self._ensure()

    async def _ensure(self) -> Topic | Refused:
        broker = self._broker
        if broker.cluster is not None and broker.topics.get(self.name) is None:
            # Another broker may have made it a moment ago.
            refused = await broker.cluster.refresh()
            if refused is not None:
                return refused
        topic = broker.topics.get(self.name)
        if topic is not None:
            return topic
        plan = self._plan(broker.config)
        factor = self._replication_factor(plan)
        if isinstance(factor, Refused):
            return factor
        count = plan.partition_count
        created = await broker.create_topic(self.name, count, plan.configs(factor), replication_factor=factor)
        if isinstance(created, Refused):
            if created.error is ErrorCode.topic_already_exists:
                return broker.topics.get(self.name) or created
            log.warning("%s could not be created: %s", self.name, created.message)
        else:
            log.info("%s was created, with %d partitions of %d replicas", self.name, count, factor)
        return created

    def _replication_factor(self, plan: TopicPlan) -> int | Refused:
        broker = self._broker
        wanted = plan.replication_factor
        if broker.cluster is None:
            return 1
        brokers = frozenset(node.id for node in broker.nodes())
        if len(brokers) >= wanted or plan.replication_factor_key in broker.config.given:
            return wanted  # with too few brokers, whoever places the replicas refuses, and says why
        now_ms = broker.clock.monotonic_ms()
        if brokers != self._brokers:
            self._brokers, self._brokers_since_ms = brokers, now_ms
        if now_ms - self._brokers_since_ms < SETTLED_AFTER_MS or not brokers:
            return Refused(
                ErrorCode.leader_not_available,  # in the words of Metadata, which makes it too
                f"{self.name} is not there yet: {len(brokers)} of {wanted} brokers have started; it is made on "
                f"these if no other one joins within {SETTLED_AFTER_MS / 1000:g} s",
            )
        return len(brokers)
