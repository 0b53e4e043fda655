"""The partitions of a coordinator's topic that this broker leads, and access to their coordinators."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from ottla.broker.context import BrokerContext
from ottla.broker.coordinators.internal_topic import InternalTopic, TopicPlan
from ottla.broker.coordinators.led_shard import LedShard, State
from ottla.broker.coordinators.standalone_events import StandaloneEvents
from ottla.broker.endpoints import Node
from ottla.broker.metadata import Metadata
from ottla.broker.partition.partition import Partition
from ottla.broker.topics.topics import Topic
from ottla.machines.groups.placement import partition_of
from ottla.protocol.model.broker_config import BrokerConfig
from ottla.protocol.model.errors import ErrorCode, Refused

RELOAD_AFTER_MS = 500.0
"""Delay before a shard is reloaded after a failure, if this broker still leads the partition."""

ShardT = TypeVar("ShardT", bound=LedShard)


class LedShards(ABC, Generic[ShardT]):
    """All shards of one coordinator topic on this broker."""

    def __init__(
        self,
        context: BrokerContext,
        metadata: Metadata,
        topic_name: str,
        plan: Callable[[BrokerConfig], TopicPlan],
    ) -> None:
        self.topic_name = topic_name
        self._context = context
        self._metadata = metadata
        self._clock = context.clock
        self._topic = InternalTopic(context, metadata, topic_name, plan)
        self._shards: dict[int, ShardT] = {}
        """Shards by partition index."""
        self._loading = asyncio.Lock()
        self._failures = StandaloneEvents(self.on_role)
        self._is_stopped = False

    @abstractmethod
    def _new_shard(self, partition: Partition) -> ShardT: ...

    # -- for handlers -----------------------------------------------------------------------------------------

    async def coordinator_of(self, name: str, listener: str | None = None) -> Node | Refused:
        """Returns the broker that coordinates a group or transactional id, with its address at the listener, creating
        the topic if necessary. Refused with COORDINATOR_NOT_AVAILABLE."""
        topic = await self.ensure_topic()
        if isinstance(topic, Refused):
            return not_available(topic.message or topic.error.name)
        index = index_of(topic, name)
        leader = topic.layouts[index].leader if index is not None else -1
        found = next((node for node in self._metadata.nodes(listener) if node.id == leader), None)
        return found or not_available(f"partition {index} of {self.topic_name} has no leader at the moment")

    async def ensure_topic(self) -> Topic | Refused:
        """Returns the topic, creating it if necessary."""
        return await self._topic.ensure()

    async def ask(self, request: Any, name: str) -> Any:
        """Hands a request to the coordinator of that name and waits for the reply, without a timeout.

        Refused with NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE; with
        UNKNOWN_SERVER_ERROR if the request hit a bug.
        """
        asked = self.ask_soon(request, name)
        return asked if isinstance(asked, Refused) else await asked

    def ask_soon(self, request: Any, name: str) -> asyncio.Future[Any] | Refused:
        """Like `ask`, for callers that can use a reply that is available at once."""
        shard = self._shard_of(name)
        return shard if isinstance(shard, Refused) else shard.ask(request)

    async def ask_all(self, request: Any) -> list[Any] | Refused:
        """Asks every partition that this broker leads, and returns the replies in order of the partitions."""
        if self._is_stopped:
            return not_available("the broker is stopping")
        asked = [shard.ask(request) for _, shard in sorted(self._shards.items())]
        refused = next((each for each in asked if isinstance(each, Refused)), None)
        if refused is not None:
            return refused
        replies = await asyncio.gather(*(each for each in asked if not isinstance(each, Refused)))
        return next((each for each in replies if isinstance(each, Refused)), replies)

    # -- for the broker ---------------------------------------------------------------------------------------

    def on_role(self, partition: Partition) -> None:
        """Starts or ends the shard of a partition that may have another leader, another epoch, or no log any more."""
        if partition.topic.name != self.topic_name:
            return
        shard = self._shards.get(partition.index)
        if shard is not None and (shard.partition is not partition or not shard.is_current):
            shard.end("its leadership ended or changed")
        self._lead(partition)

    def stop(self) -> None:
        """Ends all shards: pending requests fail and new ones are refused."""
        self._is_stopped = True
        for shard in list(self._shards.values()):
            shard.end("the broker stops")

    # -- shards -----------------------------------------------------------------------------------------------

    def _lead(self, partition: Partition) -> None:
        is_here = partition.is_led_here and not partition.deleted and partition.log.failed is None
        if self._is_stopped or not is_here or partition.index in self._shards:
            return
        if partition.events is None:
            partition.events = self._failures
        shard = self._shards[partition.index] = self._new_shard(partition)
        self._clock.call_soon(shard.begin)

    def _on_ended(self, shard: ShardT) -> None:
        partition = shard.partition
        if self._shards.get(partition.index) is shard:
            del self._shards[partition.index]
        if not self._is_stopped and shard.is_current:
            self._clock.call_later(RELOAD_AFTER_MS, partial(self._lead, partition))

    def _shard_of(self, name: str) -> ShardT | Refused:
        topic = self._context.topics.get(self.topic_name)
        index = index_of(topic, name) if topic is not None else None
        if topic is None or index is None:
            return Refused(ErrorCode.not_coordinator)
        shard = self._shards.get(index)
        if shard is not None:
            return shard
        if self._is_stopped:
            return not_available("the broker is stopping")
        partition = topic.partition(index)
        if partition is None or not partition.is_led_here:
            return Refused(ErrorCode.not_coordinator)
        return not_available(f"partition {index} of {self.topic_name} cannot be used at the moment")

    def _serving(self) -> Iterator[ShardT]:
        return (shard for _, shard in sorted(self._shards.items()) if shard.state is State.SERVING)


def index_of(topic: Topic, name: str) -> int | None:
    """Returns the partition of a name, or None if this broker does not know all partitions of the topic: the mapping
    depends on their number."""
    return partition_of(name, topic.partition_count) if is_all_known(topic) else None


def coordinator_of(topic: Topic | None, key: str) -> int | None:
    """Returns the broker that leads the key's shard, or None if there is none now. Never creates the topic."""
    index = None if topic is None else index_of(topic, key)
    if topic is None or index is None or topic.layouts[index].leader < 0:
        return None
    return topic.layouts[index].leader


def is_all_known(topic: Topic) -> bool:
    """Whether this broker knows every partition of the topic."""
    count = topic.partition_count
    return count > 0 and (topic.spread is None or topic.spread[-1].partition == count - 1)


def not_available(why: str) -> Refused:
    """Returns a COORDINATOR_NOT_AVAILABLE refusal."""
    return Refused(ErrorCode.coordinator_not_available, why)
