"""The internal topic of a coordinator. As in Kafka, it is created when a client first asks for a coordinator.

**Number of replicas.** A setting such as `offsets.topic.replication.factor` determines it; the default is 3. If there
are that many brokers, the topic gets all its replicas at once. Otherwise it is created on the brokers there are, once
no other broker has joined for a few seconds, and the controller adds replicas when more brokers join
(`machines/controller/replica_growth.py`). So a broker that is down does not keep groups from starting.

If an operator has set the number, the topic needs a majority of it from the start: acknowledged offsets must not depend
on the disk of the one broker of three that started first. If the number is not set, any number of brokers is enough, so
that a single broker works.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.broker.context import BrokerContext
from ottla.broker.metadata import Metadata
from ottla.broker.topics.topics import Topic
from ottla.protocol.model.broker_config import BrokerConfig
from ottla.protocol.model.errors import ErrorCode, Refused

log = logging.getLogger("ottla.coordinators")

SETTLED_AFTER_MS = 5000.0
"""A cluster whose set of brokers has not changed for this long is considered complete."""


class TopicPlan(NamedTuple):
    """The configured properties of the topic."""

    partition_count: int
    replication_factor: int
    replication_factor_key: str
    """If an operator has set this key, the topic is created with at least a majority of the replicas."""
    configs: Callable[[int], Mapping[str, str]]
    """The topic's settings, given its actual number of replicas."""


class InternalTopic:
    """Creates an internal topic on demand."""

    def __init__(
        self, context: BrokerContext, metadata: Metadata, name: str, plan: Callable[[BrokerConfig], TopicPlan]
    ) -> None:
        self.name = name
        self._context = context
        self._metadata = metadata
        self._plan = plan
        self._creating = asyncio.Lock()
        self._brokers: frozenset[int] = frozenset()
        self._brokers_since_ms = 0.0

    async def ensure(self) -> Topic | Refused:
        """Returns the topic, creating it if necessary."""
        topic = self._context.topics.get(self.name)
        if topic is not None:
            return topic
        async with self._creating:
            return await self._ensure()

    async def _ensure(self) -> Topic | Refused:
        topics = self._context.topics
        if topics.get(self.name) is None:
            # Another broker may have created it in the meantime.
            refused = await self._metadata.refresh()
            if refused is not None:
                return refused
        topic = topics.get(self.name)
        if topic is not None:
            return topic
        plan = self._plan(self._context.config)
        factor = self._replication_factor(plan)
        if isinstance(factor, Refused):
            return factor
        count = plan.partition_count
        is_short = self._metadata.brokers_may_join and factor < plan.replication_factor
        created = await self._metadata.admin.create_topic(
            self.name,
            count,
            plan.configs(factor),
            replication_factor=factor,
            replicas_wanted=plan.replication_factor if is_short else 0,
        )
        if isinstance(created, Refused):
            if created.error is ErrorCode.topic_already_exists:
                return topics.get(self.name) or created
            log.warning("%s could not be created: %s", self.name, created.message)
        else:
            log.info("%s was created, with %d partitions of %d replicas", self.name, count, factor)
        return created

    def _replication_factor(self, plan: TopicPlan) -> int | Refused:
        wanted = plan.replication_factor
        if not self._metadata.brokers_may_join:
            return 1
        brokers = frozenset(node.id for node in self._metadata.nodes())
        if len(brokers) >= wanted:
            return wanted
        is_set = plan.replication_factor_key in self._context.config.given
        needed = wanted // 2 + 1 if is_set else 1
        now_ms = self._context.clock.monotonic_ms()
        if brokers != self._brokers:
            self._brokers, self._brokers_since_ms = brokers, now_ms
        if len(brokers) < needed:
            condition = f"once {needed} brokers have joined, a majority of {plan.replication_factor_key}"
        elif now_ms - self._brokers_since_ms < SETTLED_AFTER_MS:
            condition = f"on the current brokers if no other joins within {SETTLED_AFTER_MS / 1000:g} s"
        else:
            return len(brokers)
        # Use the wording of Metadata, which creates the topic too.
        started = f"{len(brokers)} of {wanted} brokers have started"
        reason = f"{self.name} does not exist yet: {started}; it is created {condition}"
        return Refused(ErrorCode.leader_not_available, reason)
