"""The controller adds the replicas that internal topics could not get when they were created."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from ottla.broker.cluster.commits import commit
from ottla.broker.cluster.controller_loop import ControllerLoop
from ottla.broker.cluster.membership import Membership
from ottla.broker.coordinators.internal_topic import TopicPlan
from ottla.broker.metadata import PartitionAdmin
from ottla.coordination.port import OutcomeUnknownError, UnavailableError
from ottla.machines.controller.replica_growth import finish_growth, missing_replicas
from ottla.machines.controller.state import TopicState
from ottla.ports import Clock, Timer
from ottla.protocol.model.errors import Refused

log = logging.getLogger("ottla.controller")

CHECK_MS = 1000.0
MIN_INSYNC_REPLICAS = "min.insync.replicas"


class ReplicaGrowth:
    """Adds missing replicas periodically. Every broker runs the timer; only the controller acts."""

    def __init__(
        self,
        membership: Membership,
        controller: ControllerLoop,
        partition_admin: PartitionAdmin,
        clock: Clock,
        plans: Callable[[], Mapping[str, TopicPlan]],
        *,
        allow_shared_machine: bool,
    ) -> None:
        self._membership = membership
        self._controller = controller
        self._partition_admin = partition_admin
        self._clock = clock
        self._plans = plans
        self._allow_shared_machine = allow_shared_machine
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_running = False

    def start(self) -> None:
        """Starts the periodic check."""
        self._is_running = True
        self._arm()

    async def stop(self) -> None:
        """Stops the periodic check and cancels the growth in progress."""
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _arm(self) -> None:
        if self._is_running:
            self._timer = self._clock.call_later(CHECK_MS, self._check)

    def _check(self) -> None:
        try:
            is_busy = self._task is not None and not self._task.done()
            if not is_busy and self._membership.is_alive and self._controller.entry is not None:
                due = [(topic, plan) for name, plan in self._plans().items() if (topic := self._short(name))]
                if due:
                    self._task = asyncio.ensure_future(self._grow_all(due))
        finally:
            self._arm()

    def _short(self, name: str) -> TopicState | None:
        topic = self._membership.image.topic_named(name)
        return topic if topic is not None and topic.replicas_wanted else None

    async def _grow_all(self, due: Iterable[tuple[TopicState, TopicPlan]]) -> None:
        for topic, plan in due:
            await self._grow(topic, plan)

    async def _grow(self, topic: TopicState, plan: TopicPlan) -> None:
        """Reassigns the partitions that lack replicas, or finishes the growth. A later check retries a step that
        fails."""
        image = self._membership.image
        # An operator may have lowered the factor in the meantime and no longer want the other replicas.
        factor = min(topic.replicas_wanted, plan.replication_factor)
        targets = missing_replicas(image, topic, factor, allow_shared_machine=self._allow_shared_machine)
        if not targets:
            await self._finish(topic, factor, plan)
            return
        log.info("%s: adding missing replicas: reassigning %d partition(s)", topic.name, len(targets))
        answers = await self._partition_admin.reassign({(at.topic, at.partition): to for at, to in targets.items()})
        refusals = (
            [answers] if isinstance(answers, Refused) else [each for each in answers.values() if each is not None]
        )
        if refusals:
            log.warning("%s: could not add missing replicas: %s", topic.name, refusals[0].message)

    async def _finish(self, topic: TopicState, factor: int, plan: TopicPlan) -> None:
        wanted, current = plan.configs(factor).get(MIN_INSYNC_REPLICAS), topic.configs.get(MIN_INSYNC_REPLICAS)
        is_raised = wanted is not None and current is not None and int(wanted) > int(current)
        membership = self._membership
        configs = {MIN_INSYNC_REPLICAS: wanted} if is_raised and wanted is not None else {}
        write = finish_growth(membership.image, topic.id, factor, configs)
        if write is None:
            return
        try:
            revision = await commit(membership.store, write)
        except (UnavailableError, OutcomeUnknownError):
            return
        if revision is not None:
            log.info("%s", write.why)
            await membership.seen(revision)
