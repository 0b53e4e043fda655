"""Creates, changes and deletes topics of a cluster, with a compare-and-set in the coordination store.

Any broker can carry out a request. It replies when its own image shows the change, so that its next client sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.broker.cluster.admin_commits import TRIES, busy, commit_or_refuse
from ottla.broker.cluster.membership import Membership
from ottla.broker.context import BrokerContext
from ottla.broker.topics.topic_admin import PARTITIONS_MAX, Assignment, TopicAdmin, TopicCreation, planned_layouts
from ottla.broker.topics.topic_configs import DURABILITY, TopicConfigs
from ottla.broker.topics.topics import Topic
from ottla.coordination.port import Revision
from ottla.machines.controller import keys
from ottla.machines.controller.assignment import Replicas, check_manual, place
from ottla.machines.controller.state import TopicState
from ottla.machines.controller.topic_requests import (
    Creation,
    alter_broker_configs,
    alter_topic_configs,
    check_new_count,
    create_partitions,
    create_topic,
    delete_topic,
)
from ottla.machines.controller.writes import Limits, Write
from ottla.protocol.model.broker_config import with_overrides
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId


class ClusterAdmin(TopicAdmin):
    """Administers the topics and settings of a cluster."""

    has_cluster_defaults = True

    def __init__(
        self,
        context: BrokerContext,
        configs: TopicConfigs,
        membership: Membership,
        creating: set[TopicId],
        *,
        allow_shared_machine: bool,
    ) -> None:
        super().__init__(context, configs)
        self._membership = membership
        self._creating = creating
        """Creations in progress, which the clean-up leaves alone."""
        self._allow_shared_machine = allow_shared_machine
        self._limits = Limits(operations_max=membership.store.operations_max)

    # -- create -----------------------------------------------------------------------------------------------

    async def _create_topic(self, creation: TopicCreation) -> Topic | Refused:
        context, name, assignment = self._context, creation.name, creation.assignment
        defaults = context.config
        count = defaults.num_partitions if creation.partition_count == -1 else creation.partition_count
        factor = creation.replication_factor
        factor = defaults.default_replication_factor if factor == -1 else factor
        if assignment is not None:
            count, factor = len(assignment), len(assignment[0])
        refused = context.topics.check_new_name(name) or _check_count(count)
        config = refused or self._configs.parse_new(name, creation.configs)
        if isinstance(config, Refused):
            return config
        overrides = {**creation.configs, DURABILITY: config.durability.value}
        state = TopicState(self._new_id(), name, count, overrides, context.clock.now_ms(), creation.replicas_wanted)
        for _ in range(TRIES):
            placed = self._place(range(count), factor, state, assignment)
            if isinstance(placed, Refused):
                return placed
            member, lease = self._membership.member, self._membership.lease
            if member is None or lease is None:
                return _not_a_member()
            planned = create_topic(self._membership.image, state, placed, member, lease.id, self._limits)
            if creation.validate_only:
                layouts = planned_layouts(placed)
                topic = Topic(name, state.id, config, overrides, state.created_ms, spread=layouts)
                return planned if isinstance(planned, Refused) else topic
            outcome = planned if isinstance(planned, Refused) else await self._create(planned)
            if outcome is None:
                continue
            if isinstance(outcome, Refused):
                return outcome
            await self._membership.seen(outcome)
            created = context.topics.by_id(state.id)
            return created or Refused(ErrorCode.unknown_topic_or_partition, f"Topic '{name}' was deleted concurrently.")
        return busy(f"topic '{name}' could not be created")

    def _place(
        self, partitions: range, factor: int, state: TopicState, assignment: Assignment | None
    ) -> list[Replicas] | Refused:
        """Returns the replicas of each new partition. A requested assignment is used as it is or refused."""
        image, shared = self._membership.image, self._allow_shared_machine
        if assignment is None:
            beside = [found.value for found in image.partitions_of(state.id).values()]
            seed = state.id.int & 0xFFFFFFFF
            return place(image, partitions, factor, seed, allow_shared_machine=shared, beside=beside)
        for replicas in assignment:
            refused = check_manual(image, replicas, factor, allow_inactive=True, allow_shared_machine=shared)
            if refused is not None:
                return refused
        return list(assignment)

    async def _create(self, creation: Creation) -> Revision | Refused | None:
        """Returns the revision at which the topic exists, or None if another write came first and a retry may
        succeed."""
        self._creating.add(creation.topic.id)
        try:
            return await self._create_in_steps(creation)
        finally:
            self._creating.discard(creation.topic.id)

    async def _create_in_steps(self, creation: Creation) -> Revision | Refused | None:
        first = await self._commit(creation.first)
        if not isinstance(first, int):
            return first
        last = first
        for write in creation.rest(first):
            applied = await self._commit(write)
            if not isinstance(applied, int):
                abandoned = creation.abandon(first)
                if abandoned is not None:
                    await self._commit(abandoned)
                return applied
            last = applied
        return last

    async def _create_partitions(
        self, topic: Topic, total: int, assignment: Assignment | None, *, validate_only: bool
    ) -> Refused | None:
        for _ in range(TRIES):
            image = self._membership.image
            state = image.topic(topic.id)
            if state is None:
                return Refused(ErrorCode.unknown_topic_or_partition)
            refused = check_new_count(state, total) or _check_count(total)
            added = range(state.partition_count, total)
            if refused is None and assignment is not None and len(assignment) != len(added):
                refused = busy(f"topic '{topic.name}' got partitions concurrently")
            placed = refused or self._place(added, self._target_factor(topic), state, assignment)
            if isinstance(placed, Refused):
                return placed
            member, lease = self._membership.member, self._membership.lease
            if member is None or lease is None:
                return _not_a_member()
            creation = create_partitions(image, topic.id, placed, member, lease.id, self._limits)
            if isinstance(creation, Refused) or validate_only:
                return creation if isinstance(creation, Refused) else None
            outcome = await self._create(creation)
            if isinstance(outcome, Refused):
                return outcome
            if outcome is not None:
                await self._membership.seen(outcome)
                return None
        return busy(f"topic '{topic.name}' could not be changed")

    def _target_factor(self, topic: Topic) -> int:
        """Returns the number of replicas of the first partition, as of the end of its reassignment."""
        found = self._membership.image.partitions_of(topic.id).get(0)
        return topic.replication_factor if found is None else len(found.value.target)

    # -- change and delete ------------------------------------------------------------------------------------

    async def _store_configs(self, topic: Topic, overrides: Mapping[str, str]) -> Refused | None:
        return await self._change(lambda: alter_topic_configs(self._membership.image, topic.id, overrides))

    def dynamic_configs(self, broker_name: str) -> Mapping[str, str]:
        return self._membership.image.configs(broker_name or keys.DEFAULT)

    async def alter_broker_configs(
        self, overrides: Mapping[str, str], *, broker_name: str = "", validate_only: bool = False
    ) -> Refused | None:
        image = self._membership.image
        of_all = overrides if not broker_name else image.configs(keys.DEFAULT)
        of_one = overrides if broker_name else image.configs(str(self._context.node_id))
        refused = _check_one(overrides) if broker_name else None
        merged = refused or with_overrides(self._context.static_config, {**of_all, **of_one})
        if isinstance(merged, Refused) or validate_only:
            return merged if isinstance(merged, Refused) else None
        name = broker_name or keys.DEFAULT
        return await self._change(lambda: alter_broker_configs(self._membership.image, name, overrides))

    async def delete_topic(self, topic: Topic) -> Refused | None:
        return await self._change(lambda: delete_topic(self._membership.image, topic.id))

    async def _change(self, decide: Callable[[], Write | Refused | None]) -> Refused | None:
        for _ in range(TRIES):
            write = decide()
            if write is None or isinstance(write, Refused):
                return write
            outcome = await self._commit(write)
            if isinstance(outcome, Refused):
                return outcome
            if outcome is not None:
                await self._membership.seen(outcome)
                return None
        return busy("the settings could not be changed")

    async def _commit(self, write: Write) -> Revision | Refused | None:
        return await commit_or_refuse(self._membership, write)


def _check_count(partition_count: int) -> Refused | None:
    if not 1 <= partition_count <= PARTITIONS_MAX:
        reason = f"Number of partitions must be between 1 and {PARTITIONS_MAX}, not {partition_count}."
        return Refused(ErrorCode.invalid_partitions, reason)
    return None


def _check_one(overrides: Mapping[str, str]) -> Refused | None:
    """Refuses settings that must not differ between brokers, because they decide together what counts as in sync."""
    for name in overrides:
        if name in ("min.insync.replicas", "unclean.leader.election.enable"):
            why = f"{name} must be the same on all brokers; set it as the cluster default or for a topic."
            return Refused(ErrorCode.invalid_config, why)
    return None


def _not_a_member() -> Refused:
    return Refused(ErrorCode.broker_not_available, "this broker is not registered with the cluster at the moment")
