"""One broker's life in the coordination store: its lease, its registration, and the image of everything in it.

A registration is one incarnation. When the lease is lost, whatever the reason, this broker stops leading at once. The
same process comes back as the same incarnation if it still has everything, in memory too; otherwise it is the next
one, and what it has on its disk says what that one has kept.

The lease is renewed by the event loop that serves: a loop that hangs stops renewing, and others take over (SAFETY 16).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import replace

from ottla.broker.cluster.waiting import sleep
from ottla.coordination.port import (
    Batch,
    Committed,
    Coordination,
    Lease,
    OutcomeUnknownError,
    Resync,
    Revision,
    UnavailableError,
)
from ottla.machines.controller.broker_requests import BrokerStart, Registering, register_broker, resume_registration
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.state import Member, PartitionKey, Registration
from ottla.machines.controller.touched import Touched
from ottla.machines.controller.writes import Write
from ottla.model.durability import Durability
from ottla.model.errors import Refused
from ottla.ports import Clock, Timer

log = logging.getLogger("ottla.cluster")

RENEWALS_A_TTL = 3
RETRY_MS = 200.0
REFUSED_TTLS = 2.5
"""A broker that is gone leaves its id to others after one TTL at most; a store may take its time to notice."""
REVISION_ONLY = "controller"
"""A prefix with hardly anything under it: for a snapshot that is wanted for its revision."""


class NotRegisteredYetError(UnavailableError):
    """Something in the store stands in the way that will end by itself."""


class BrokerIdInUseError(Exception):
    """What stands in the way of the first registration does not end: another broker has this id, and is alive."""


class MembershipEvents:
    """What a broker does about changes. All calls are on the event loop's thread; none of them has to do anything."""

    def on_registered(self) -> None: ...

    def on_lease_lost(self) -> None: ...

    def on_touched(self, touched: Touched) -> None: ...

    def on_reloaded(self) -> None:
        """The image was taken anew: anything may have changed."""


class Membership:
    def __init__(self, store: Coordination, clock: Clock, ttl_ms: int) -> None:
        self.store = store
        self._clock = clock
        self._ttl_ms = ttl_ms
        self.image = ClusterImage()
        self.revision = Revision(0)
        self.registration: Registration | None = None
        self.lease: Lease | None = None
        self.events: list[MembershipEvents] = []
        self._start: BrokerStart | None = None
        self._lost: Registration | None = None
        """Of the incarnation whose lease ended, while this process still has all that it had."""
        self.failed_logs: Callable[[], Collection[PartitionKey]] = tuple
        """What the next incarnation has to say of itself from its first moment on."""
        self.damaged_classes: Callable[[], Collection[Durability]] = tuple
        self._tasks: list[asyncio.Task[None]] = []
        self._waiters: list[tuple[Revision, asyncio.Future[None]]] = []
        self._deadline: Timer | None = None

    @property
    def is_alive(self) -> bool:
        """Whether this incarnation holds its lease for sure, now."""
        is_held = self.lease is not None and self.lease.is_alive(self._clock.monotonic_ms())
        return is_held and self.registration is not None

    @property
    def epoch(self) -> int | None:
        return self.registration.epoch if self.registration is not None else None

    @property
    def member(self) -> Member | None:
        return self.registration.member if self.registration is not None else None

    # -- life -------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads everything. Waits for the store as long as it takes."""
        await self._until_available(self._reload)

    async def join(self, start: BrokerStart) -> None:
        """Registers, and stays registered. Raises BrokerIdInUseError."""
        self._start = start
        await self._until_available(self._register, refusals_end_ms=REFUSED_TTLS * self._ttl_ms)
        self._tasks = [asyncio.ensure_future(self._renew_always()), asyncio.ensure_future(self._watch_always())]
        for task in self._tasks:
            task.add_done_callback(self._on_task_ended)

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        """Both go on for ever, so this is a bug. A broker that hears nothing more of its cluster must not lead: others
        take over when its lease ends."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            for other in self._tasks:
                other.cancel()
            self._lose()
            message = "this broker follows its cluster no more: restart it"
            task.get_loop().call_exception_handler({"message": message, "exception": fault, "task": task})

    async def leave(self) -> None:
        """The lease ends now, so that nobody waits for it to expire."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._disarm()
        if self.lease is not None and not self.lease.lost:
            await _give_back(self.lease)

    def start_over(self) -> None:
        """This incarnation does not have what it said it had. It leads nothing from now on; the next one says so."""
        self._lose()
        self._lost = None

    async def seen(self, revision: Revision) -> None:
        """Waits until the image has everything up to the revision: to read one's own writes."""
        if revision > self.revision:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((revision, waiter))
            await waiter

    async def refresh(self) -> None:
        """Waits until the image has what the store had when this was called. Raises UnavailableError."""
        snapshot = await self.store.snapshot(REVISION_ONLY)
        await self.seen(snapshot.revision)

    # -- registration and lease -------------------------------------------------------------------------------

    async def _register(self) -> None:
        assert self._start is not None
        # Whatever stood in the way of the try before this one may have ended with its lease.
        await self._reload()
        self.lease = lease = await self.store.open_lease(self._ttl_ms)
        while lease.is_alive(self._clock.monotonic_ms()):
            registering = self._next_registration(lease)
            if isinstance(registering, Refused):
                await _give_back(lease)
                raise NotRegisteredYetError(registering.message)
            write = registering.write
            try:
                outcome = await self.store.commit(write.conditions, write.operations)
            except OutcomeUnknownError:
                outcome = None  # applied or not, or still to be: the next try is another incarnation in any case
            if isinstance(outcome, Committed):
                self.registration, self._lost = registering.registration, None
                break
            await self._reload()
        else:
            raise UnavailableError("the lease ended before the registration")
        log.info("registered as broker %d, broker epoch %d", *self.registration.member)
        self._arm()
        await self._until_available(self._reload)  # by itself: whoever is registered must not register again for it
        for listener in self.events:
            listener.on_registered()

    def _next_registration(self, lease: Lease) -> Registering | Refused:
        """As the incarnation that lost its lease, if it still has everything and nobody came after it."""
        assert self._start is not None
        failed = self.failed_logs()
        if self._lost is not None and not failed and not self._start.damaged:
            resumed = resume_registration(self.image, self._lost, lease.id)
            if isinstance(resumed, Write):
                return Registering(resumed, self._lost)
        self._lost = None
        return register_broker(self.image, replace(self._start, failed=failed), lease.id)

    async def _renew_always(self) -> None:
        while True:
            assert self.lease is not None
            await sleep(self._clock, self.lease.ttl_ms / RENEWALS_A_TTL)
            try:
                await self.lease.renew()
            except (UnavailableError, OutcomeUnknownError) as error:
                log.warning("the lease could not be renewed: %s", error)
            if self.lease.is_alive(self._clock.monotonic_ms()) and self.registration is not None:
                self._arm()
            else:
                await self._come_back()

    def _arm(self) -> None:
        """At the deadline of the lease this broker leads nothing any more, whatever it waits for then."""
        self._disarm()
        assert self.lease is not None
        left_ms = self.lease.deadline_ms - self._clock.monotonic_ms()
        self._deadline = self._clock.call_later(max(left_ms, 0.0), self._on_deadline)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        if self.is_alive:
            self._arm()  # a clock that is early must not be the reason to lead for longer
        else:
            self._lose()

    def check_deadline(self) -> None:
        """A process that was paused hears of requests before its timers: whoever asks a leader asks this first."""
        if self.registration is not None and not self.is_alive:
            self._lose()

    def _lose(self) -> None:
        if self.registration is None:
            return
        log.warning("the lease of broker epoch %d is lost", self.registration.epoch)
        self.registration, self._lost = None, self.registration
        for listener in self.events:
            listener.on_lease_lost()

    async def _come_back(self) -> None:
        self._lose()
        assert self._start is not None
        # What was clean, or damaged, before this process began says nothing of the incarnations since.
        self._start = replace(self._start, clean_shutdown_epoch=None, damaged=self.damaged_classes())
        await self._until_available(self._register)

    # -- the image --------------------------------------------------------------------------------------------

    async def _reload(self) -> None:
        snapshot = await self.store.snapshot()
        if snapshot.revision < self.revision:
            return
        self.image = ClusterImage.load(snapshot.entries)
        for listener in self.events:
            listener.on_reloaded()
        self._complete_up_to(snapshot.revision)

    async def _watch_always(self) -> None:
        while True:
            try:
                await self._watch()
            except UnavailableError as error:
                log.warning("the coordination store cannot be watched: %s", error)
                await sleep(self._clock, RETRY_MS)
            await self._until_available(self._reload)

    async def _watch(self) -> None:
        """Ends when the history is gone: then everything is read again."""
        async with aclosing(self.store.watch("", self.revision)) as batches:
            async for batch in batches:
                if isinstance(batch, Resync):
                    return
                if batch.revision > self.revision:
                    self._apply(batch)

    def _apply(self, batch: Batch) -> None:
        touched = self.image.apply(batch.changes)
        for problem in touched.unreadable:
            log.error("%s", problem)
        for listener in self.events:
            listener.on_touched(touched)
        self._complete_up_to(batch.revision)

    def _complete_up_to(self, revision: Revision) -> None:
        self.revision = max(self.revision, revision)
        due = [waiter for wanted, waiter in self._waiters if wanted <= self.revision]
        self._waiters = [wait for wait in self._waiters if wait[0] > self.revision]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)

    async def _until_available(
        self, job: Callable[[], Awaitable[None]], *, refusals_end_ms: float | None = None
    ) -> None:
        """A registration may be refused for `refusals_end_ms` at a stretch; for ever, if that is None."""
        said = ""
        refused_since_ms: float | None = None
        while True:
            now_ms = self._clock.monotonic_ms()
            try:
                await job()
            except NotRegisteredYetError as error:
                reason = f"not registered yet: {error}"
                refused_since_ms = now_ms if refused_since_ms is None else refused_since_ms
                if refusals_end_ms is not None and now_ms - refused_since_ms > refusals_end_ms:
                    raise BrokerIdInUseError(str(error)) from error
            except UnavailableError as error:
                reason = f"the coordination store is not available: {error}"
                refused_since_ms = None  # without the store no lease ends
            else:
                return
            if reason != said:
                log.warning("%s", reason)
                said = reason
            await sleep(self._clock, RETRY_MS)


async def _give_back(lease: Lease) -> None:
    try:
        await lease.revoke()
    except (UnavailableError, OutcomeUnknownError) as error:
        log.warning("the lease could not be given back, it ends by itself: %s", error)
