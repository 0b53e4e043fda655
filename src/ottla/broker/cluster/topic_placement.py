"""Applies the cluster image to the topics of this broker: their metadata for clients, and the logs placed here."""

from __future__ import annotations

import logging
from collections import Counter

from ottla.broker.cluster.membership import Membership
from ottla.broker.cluster.roles import PartitionRoles
from ottla.broker.context import BrokerContext
from ottla.broker.partition.backlog import PartitionBacklog
from ottla.broker.partition.layout import Layout
from ottla.broker.partition.partition import Partition, Role
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.memory_log import MemoryLog
from ottla.broker.topics.topic_configs import TopicConfigs
from ottla.broker.topics.topics import Topic
from ottla.machines.controller import keys
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import NO_LEADER, PartitionKey, PartitionState, TopicState, Versioned
from ottla.protocol.model.broker_config import BROKER_CONFIGS, with_overrides
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId
from ottla.protocol.model.topic_config import TopicConfig

log = logging.getLogger("ottla.cluster")

LOOK_AGAIN_MS = 20.0


class TopicPlacement:
    """Opens and removes topics and partitions as the image changes."""

    def __init__(self, context: BrokerContext, membership: Membership, rules: RuleBook, configs: TopicConfigs) -> None:
        self._context = context
        self._membership = membership
        self._configs = configs
        self.roles = PartitionRoles(context, membership, rules, self._look_again)
        self.is_running = False
        self._being_removed: Counter[TopicId] = Counter()

    # -- changes of the image ---------------------------------------------------------------------------------

    def place_all(self) -> None:
        """Applies the whole image."""
        if not self.is_running:
            return
        image = self._membership.image
        self.apply_dynamic_configs()
        known = {topic.id for topic in image.topics()}
        for topic in list(self._context.topics):
            if topic.id not in known:
                self._remove_topic(topic)
        for state in list(image.topics()):
            self._place_topic(state)

    def place(self, touched: ImageChanges) -> None:
        """Applies a change of the image."""
        if not self.is_running:
            return
        image = self._membership.image
        if touched.configs:
            self.apply_dynamic_configs()
        topics: set[TopicId] = set(touched.topics)
        topics |= {key.topic_id for key in touched.partitions}
        if touched.brokers:
            # Addresses and incarnations have changed, so leaders and followers may be other ones now.
            topics |= {state.id for state in image.topics()}
        for topic_id in topics:
            state = image.topic(topic_id)
            topic = self._context.topics.by_id(topic_id)
            if state is not None:
                self._place_topic(state)
            elif topic is not None:
                self._remove_topic(topic)
        self.roles.fetchers.drop_idle()

    def stand_by(self) -> None:
        """Gives up all roles, because this incarnation has ended."""
        for partition in self._context.partitions():
            self.roles.stand_by(partition, partition.leader_epoch)
        self.roles.fetchers.drop_idle()

    def apply_dynamic_configs(self) -> None:
        """Applies the dynamic settings of all brokers, overridden by those of this one. Settings that a later version
        may have written and this one does not know are skipped."""
        image = self._membership.image
        wanted = {**image.configs(keys.DEFAULT), **image.configs(str(self._context.node_id))}
        known = {name: value for name, value in wanted.items() if name in BROKER_CONFIGS}
        if known == self._context.dynamic_overrides:
            return
        if isinstance(with_overrides(self._context.static_config, known), Refused):
            log.error("the dynamic configurations %s are invalid for this broker; ignored", known)
            return
        self._configs.apply_dynamic(known)

    def config_of(self, topic: TopicState) -> TopicConfig:
        """Returns the configuration of a topic. Raises ValueError if this version does not support it."""
        return self._configs.parse_stored(topic.configs)

    def _look_again(self, topic_id: TopicId) -> None:
        def look() -> None:
            state = self._membership.image.topic(topic_id)
            if self.is_running and state is not None:
                self._place_topic(state)

        self._context.clock.call_later(LOOK_AGAIN_MS, look)

    # -- topics -----------------------------------------------------------------------------------------------

    def _place_topic(self, state: TopicState) -> None:
        context = self._context
        topic = context.topics.by_id(state.id)
        if topic is None:
            config = self.config_of(state)
            topic = Topic(state.name, state.id, config, dict(state.configs), state.created_ms, spread=[])
            context.topics.add(topic)
        elif topic.overrides != dict(state.configs):
            self._configs.apply(topic, state.configs)
        found = self._membership.image.partitions_of(state.id)
        known_count = len(topic.spread or ())
        topic.spread = [self._layout(index, versioned.value) for index, versioned in found.items()]
        context.topics.changed()
        if len(topic.spread) != known_count:
            context.events.on_topics_changed()
        for index, versioned in found.items():
            if context.node_id in versioned.value.replicas:
                self.roles.take(topic.partition(index) or self._open(topic, index), versioned)
        for partition in [each for each in topic.partitions if not self._is_hosted(found.get(each.index))]:
            self._remove_partition(topic, partition)

    def _layout(self, index: int, state: PartitionState) -> Layout:
        image = self._membership.image
        offline = tuple(broker_id for broker_id in state.replicas if image.registration(broker_id) is None)
        isr = tuple(member.broker_id for member in state.isr)
        eligible = tuple(member.broker_id for member in state.eligible)
        leader = state.leader if state.leader not in offline else NO_LEADER
        return Layout(index, leader, state.leader_epoch, state.replicas, isr, offline, eligible)

    def _is_hosted(self, found: Versioned[PartitionState] | None) -> bool:
        return found is not None and self._context.node_id in found.value.replicas

    def _remove_topic(self, topic: Topic) -> None:
        for partition in list(topic.partitions):
            self._remove_partition(topic, partition)
        if not topic.partitions:
            self._context.topics.remove(topic)
            is_deleted = self._membership.image.version_of(keys.topic(topic.id)) is None
            self._context.events.on_topics_changed(deleted=[topic.name] if is_deleted else [])

    # -- logs -------------------------------------------------------------------------------------------------

    def _open(self, topic: Topic, index: int) -> Partition:
        context = self._context
        key = LogKey(topic.id, PartitionIndex(index))
        partition = Partition(
            topic,
            index,
            self._log_for(key, topic),
            node_id=context.node_id,
            leader_epoch=-1,
            wakeups=context.wakeups,
            backlog=PartitionBacklog(context.backlog),
        )
        partition.role = Role.NONE
        partition.events = self.roles
        topic.partitions.append(partition)
        context.events.on_configured(topic)
        return partition

    def _log_for(self, key: LogKey, topic: Topic) -> AnyLog:
        if topic.config.durability is Durability.MEMORY:
            memory = MemoryLog(self._context.shared, key, topic.config, 0)
            memory.reserved_end = 2**62
            return memory
        return self._context.store.logs.get(key) or self._context.store.create(key, topic.config)

    def _remove_partition(self, topic: Topic, partition: Partition) -> None:
        self.roles.fetchers.leave(partition)
        if not self._membership.image.is_obsolete(PartitionKey(topic.id, partition.index), self._context.node_id):
            # The entry exists but cannot be read, at least by this version: remove nothing because of that
            # (safety: topic-identity).
            partition.stand_by(partition.leader_epoch)
            self._context.events.on_role(partition)
            return
        is_deleted = self._membership.image.topic(topic.id) is None
        partition.close(ErrorCode.unknown_topic_or_partition if is_deleted else ErrorCode.not_leader_or_follower)
        self._context.events.on_role(partition)
        topic.partitions.remove(partition)
        if isinstance(partition.log, FileLog):
            self._being_removed[topic.id] += 1
            self._context.store.delete(partition.log, lambda: self._being_removed.subtract([topic.id]))
        else:
            partition.log.close()

    def is_gone(self, topic_id: TopicId) -> bool:
        """Whether no trace of a topic is left by which a restart could find it."""
        return self.is_running and self._context.topics.by_id(topic_id) is None and not self._being_removed[topic_id]
