"""The controller's work, done by the broker that holds the controller's entry.

This module makes no decisions: it feeds the image to the planner and commits the resulting writes. Writes that fail or
have an unknown outcome are planned again from the next image.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice

from ottla.broker.clock_sleep import sleep
from ottla.broker.cluster.commits import commit
from ottla.broker.cluster.membership import Membership, MembershipEvents
from ottla.coordination.port import OutcomeUnknownError, UnavailableError
from ottla.machines.controller.broker_requests import become_controller, resign_as_controller
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.planner import Planner
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import ControllerEntry, PartitionKey, Versioned
from ottla.machines.controller.writes import Limits, Write
from ottla.ports import Clock
from ottla.reach import branch

_UNKNOWN = branch("the outcome of a controller's write is unknown", __name__)
_CONFLICT = branch("a controller's write conflicts", __name__)

log = logging.getLogger("ottla.controller")

RETRY_MS = 100.0
CHANGES_MAX = 500
"""Maximum number of changes in one plan, so that a broker with many partitions to fail over serves requests in
between."""


class ControllerLoop(MembershipEvents):
    """Runs the planner on every change of the image, if this broker is the controller."""

    def __init__(self, membership: Membership, clock: Clock, rules: RuleBook) -> None:
        self._membership = membership
        self._clock = clock
        self._planner = Planner(rules)
        self.limits = Limits(operations_max=membership.store.operations_max, changes_max=CHANGES_MAX)
        self._changed = asyncio.Event()
        self._preferred: set[PartitionKey] = set()
        self._was_controller = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the task that stands for election, plans and commits. It acts on the next event."""
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Stops the work and resigns as controller."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        member = self._membership.member
        write = resign_as_controller(self._membership.image, member) if member is not None else None
        if write is not None:
            await self._try(write)

    def prefer(self, partitions: set[PartitionKey]) -> None:
        """Makes the first replica of these partitions their leader, if it is in sync."""
        self._preferred |= partitions
        self._changed.set()

    # -- events -----------------------------------------------------------------------------------------------

    def on_registered(self) -> None:
        self._changed.set()

    def on_touched(self, touched: ImageChanges) -> None:
        self._planner.observe(self._membership.image, touched)
        self._changed.set()

    def on_reloaded(self) -> None:
        self._planner.start_over()
        self._changed.set()

    # -- planning ---------------------------------------------------------------------------------------------

    @property
    def entry(self) -> Versioned[ControllerEntry] | None:
        """The controller's entry, if it belongs to this broker."""
        found, member = self._membership.image.controller, self._membership.member
        if found is None or member is None or (found.value.broker_id, found.value.broker_epoch) != member:
            return None
        return found

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._membership.is_alive:
                continue
            entry = self.entry
            if entry is None:
                self._was_controller = False
                await self._stand_for_election()
                continue
            if not self._was_controller:
                log.info("broker %d is the controller", entry.value.broker_id)
                self._was_controller = True
                self._planner.start_over()
            preferred = self._next_preferred()
            for write in self._planner.plan(self._membership.image, entry, self.limits, preferred):
                if not await self._try(write):
                    break

    def _next_preferred(self) -> frozenset[PartitionKey]:
        """Returns as many partitions as one plan takes; the others follow in the next one."""
        chosen = frozenset(islice(self._preferred, CHANGES_MAX))
        self._preferred -= chosen
        if self._preferred:
            self._changed.set()
        return chosen

    async def _stand_for_election(self) -> None:
        member, lease = self._membership.member, self._membership.lease
        if member is None or lease is None:
            return
        write = become_controller(self._membership.image, member, lease.id)
        if write is not None:
            await self._try(write)

    async def _try(self, write: Write) -> bool:
        try:
            revision = await commit(self._membership.store, write)
        except (UnavailableError, OutcomeUnknownError) as error:
            if isinstance(error, OutcomeUnknownError):
                _UNKNOWN()
            log.warning("%s: %s", write.why, error)
            await sleep(self._clock, RETRY_MS)
            self._changed.set()
            return False
        if revision is None:
            _CONFLICT()
            # Another broker was faster, and its write will arrive through the watch. Look again soon in any case.
            self._clock.call_later(RETRY_MS, self._changed.set)
            return False
        log.info("%s", write.why)
        return True
