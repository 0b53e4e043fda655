"""The broker's presence in the coordination store: its lease, its registration, and the image of the whole store.

A registration is one incarnation. When the lease is lost, for whatever reason, this broker stops leading at once. The
same process resumes the same incarnation if it still has all its data, including memory logs. Otherwise it registers
the next incarnation, and the data on its disk determines what that one has kept.

The lease is renewed on the event loop that serves requests: if the loop hangs, renewal stops and others take over
(safety: leases).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import replace

from ottla.broker.clock_sleep import sleep
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
from ottla.machines.controller.broker_requests import (
    BrokerStart,
    RegistrationWrite,
    register_broker,
    resume_registration,
)
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.state import Member, PartitionKey, Registration
from ottla.machines.controller.writes import Write
from ottla.ports import Clock, Timer
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import Refused
from ottla.reach import branch

_LOST = branch("a lease is lost", __name__)
_LATE = branch("a request finds that the lease has expired", __name__)
_RESUMED = branch("an incarnation is resumed after its lease was lost", __name__)
_UNKNOWN = branch("the outcome of a registration is unknown", __name__)
_RESYNC = branch("a broker reads the store again because a watch lost its history", __name__)

log = logging.getLogger("ottla.cluster")

RENEWALS_A_TTL = 3
RETRY_MS = 200.0
REFUSED_TTLS = 2.5
"""Number of TTLs for which registration may be refused. A dead broker releases its id after one TTL at most; the store
may need longer to notice."""
REVISION_ONLY = "controller"
"""A prefix with hardly any entries, for a snapshot that is needed only for its revision."""


class NotRegisteredYetError(UnavailableError):
    """Registration is blocked by an entry in the store that will expire."""


class BrokerIdInUseError(Exception):
    """The first registration is refused permanently: another live broker has this id."""


class MembershipEvents:
    """Callbacks for changes in the store. They run on the event loop's thread and do nothing by default."""

    def on_registered(self) -> None:
        """This broker has registered, at its start or again after it lost its lease."""

    def on_lease_lost(self) -> None:
        """The lease is lost, so this broker must not lead until it has registered again."""

    def on_touched(self, touched: ImageChanges) -> None:
        """A transaction has changed these entries of the image."""

    def on_reloaded(self) -> None:
        """The image was reloaded, so anything may have changed."""


class Membership:
    """Keeps a broker registered and its image up to date."""

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
        """The incarnation whose lease expired, as long as this process still has all its data."""
        self.failed_logs: Callable[[], Collection[PartitionKey]] = tuple
        """Failed logs, which the next registration includes from the start."""
        self.damaged_classes: Callable[[], Collection[Durability]] = tuple
        self._tasks: list[asyncio.Task[None]] = []
        self._waiters: list[tuple[Revision, asyncio.Future[None]]] = []
        self._deadline: Timer | None = None

    @property
    def is_alive(self) -> bool:
        """Whether this incarnation certainly holds its lease now."""
        is_held = self.lease is not None and self.lease.is_alive(self._clock.monotonic_ms())
        return is_held and self.registration is not None

    @property
    def epoch(self) -> int | None:
        """The broker epoch, while registered."""
        return self.registration.epoch if self.registration is not None else None

    @property
    def member(self) -> Member | None:
        """This incarnation, while registered."""
        return self.registration.member if self.registration is not None else None

    # -- life cycle -------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Loads the image. Waits for the store without a limit."""
        await self._until_available(self._reload)

    async def join(self, start: BrokerStart) -> None:
        """Registers and stays registered. Raises BrokerIdInUseError."""
        self._start = start
        await self._until_available(self._register, refusals_end_ms=REFUSED_TTLS * self._ttl_ms)
        self._tasks = [asyncio.ensure_future(self._renew_always()), asyncio.ensure_future(self._watch_always())]
        for task in self._tasks:
            task.add_done_callback(self._on_task_ended)

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        """Handles the end of a task. Both tasks run for ever, so this is a bug. A broker that hears nothing from its
        cluster must not lead: others take over when its lease expires."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            for other in self._tasks:
                other.cancel()
            self._lose()
            message = "this broker no longer follows the cluster state; restart it"
            task.get_loop().call_exception_handler({"message": message, "exception": fault, "task": task})

    async def leave(self) -> None:
        """Revokes the lease, so that other brokers need not wait until it expires."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._disarm()
        if self.lease is not None and not self.lease.lost:
            await _give_back(self.lease)

    def start_over(self) -> None:
        """Ends this incarnation because it no longer has the data that it registered with. The broker leads nothing
        from now on, and the next incarnation registers the loss."""
        self._lose()
        self._lost = None

    async def seen(self, revision: Revision) -> None:
        """Waits until the image includes the revision, so that callers read their own writes."""
        if revision > self.revision:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((revision, waiter))
            await waiter

    async def refresh(self) -> None:
        """Waits until the image includes everything that the store had at the time of the call. Raises
        UnavailableError."""
        snapshot = await self.store.snapshot(REVISION_ONLY)
        await self.seen(snapshot.revision)

    # -- registration and lease -------------------------------------------------------------------------------

    async def _register(self) -> None:
        assert self._start is not None
        # The obstacle of the previous attempt may have expired with its lease.
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
                _UNKNOWN()
                outcome = None  # applied, not applied or pending: the next attempt is another incarnation
            if isinstance(outcome, Committed):
                self.registration, self._lost = registering.registration, None
                break
            await self._reload()
        else:
            raise UnavailableError("the lease ended before the registration")
        log.info("registered as broker %d, broker epoch %d", *self.registration.member)
        self._arm()
        await self._until_available(self._reload)  # on its own: a registered broker must not register again
        for listener in self.events:
            listener.on_registered()

    def _next_registration(self, lease: Lease) -> RegistrationWrite | Refused:
        """Resumes the incarnation that lost its lease, if it still has all its data and no later one has registered."""
        assert self._start is not None
        failed = self.failed_logs()
        if self._lost is not None and not failed and not self._start.damaged:
            resumed = resume_registration(self.image, self._lost, lease.id)
            if isinstance(resumed, Write):
                _RESUMED()
                return RegistrationWrite(resumed, self._lost)
        self._lost = None
        return register_broker(self.image, replace(self._start, failed=failed), lease.id)

    async def _renew_always(self) -> None:
        while True:
            assert self.lease is not None
            await sleep(self._clock, self.lease.ttl_ms / RENEWALS_A_TTL)
            try:
                await self.lease.renew()
            except (UnavailableError, OutcomeUnknownError) as error:
                log.warning("could not renew the lease: %s", error)
            if self.lease.is_alive(self._clock.monotonic_ms()) and self.registration is not None:
                self._arm()
            else:
                await self._come_back()

    def _arm(self) -> None:
        """Sets a timer for the deadline of the lease, when this broker gives up all leaderships whatever else it waits
        for."""
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
            self._arm()  # the timer fired early
        else:
            self._lose()

    def check_deadline(self) -> None:
        """Gives up the registration if the lease has expired. A paused process may receive requests before its timers
        fire, so this is called before every request to a leader."""
        lease = self.lease
        if self.registration is not None and (lease is None or not lease.is_alive(self._clock.monotonic_ms())):
            _LATE()
            self._lose()

    def _lose(self) -> None:
        if self.registration is None:
            return
        _LOST()
        log.warning("the lease of broker epoch %d is lost", self.registration.epoch)
        self.registration, self._lost = None, self.registration
        for listener in self.events:
            listener.on_lease_lost()

    async def _come_back(self) -> None:
        self._lose()
        assert self._start is not None
        # A clean shutdown or damage before this process began says nothing about the incarnations since.
        self._start = replace(self._start, clean_shutdown_epoch=None, damaged=self.damaged_classes())
        await self._until_available(self._register)

    # -- image ------------------------------------------------------------------------------------------------

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
                log.warning("could not watch the coordination store: %s", error)
                await sleep(self._clock, RETRY_MS)
            await self._until_available(self._reload)

    async def _watch(self) -> None:
        """Follows the watch. Returns when the store has compacted its history and everything must be read again."""
        async with aclosing(self.store.watch("", self.revision)) as batches:
            async for batch in batches:
                if isinstance(batch, Resync):
                    _RESYNC()
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
        """Retries a job until the store is available. A registration may be refused for `refusals_end_ms` without a
        break, or without limit if that is None."""
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
                refused_since_ms = None  # no lease expires while the store is unavailable
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
        log.warning("could not revoke the lease; it will expire: %s", error)
