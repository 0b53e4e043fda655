"""One partition of a coordinator's topic while this broker leads it: its machine, and what waits for it (ADR 10).

    LOADING ---- the log is replayed, and the watermark has come to its end ----> SERVING
       '---------------- leadership is lost, the log fails, a step fails ------------'----> ENDED

Whatever goes wrong ends it. Nothing is undone: who led before begins anew from the log, or another broker does.

**What cannot be appended now.** Before each step it is asked whether the log takes records and enough replicas are in
sync. If not, the step is refused, and the machine's clock stands still until it can go on: in that time no client could
be heard, and none of them must be taken for gone because of it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar, Protocol

from ottla.broker.blocking import resolve
from ottla.broker.coordinators.loading import Replayable, replay_log
from ottla.broker.partition import ALL, Partition
from ottla.model.errors import ErrorCode, Refused
from ottla.ports import Clock, Timer
from ottla.records.batch import read_header, stamp, stamped

log = logging.getLogger("ottla.coordinators")

RETRY_MS = 100.0
"""How long to wait before it is tried again to append."""
ROOM_BYTES = 4096
"""What most steps need in the log. One that needs more, and does not get it, ends the term."""

Ticket = asyncio.Future[Any]
Answers = Sequence[tuple[Ticket, Any]]


class Step(Protocol):
    @property
    def records(self) -> Sequence[Any]: ...

    @property
    def answers(self) -> Answers: ...

    @property
    def deadline_ms(self) -> int | None: ...


Decide = Callable[[int, int], Step]
"""A step of the machine, at this time: elapsed, and by the wall clock."""


class State(Enum):
    LOADING = "loading"
    SERVING = "serving"
    ENDED = "ended"


class LedShard(ABC):
    who: ClassVar[str] = "clients"
    """Who has to wait while nothing can be appended."""
    reads: ClassVar[tuple[type, ...]] = ()
    """Requests that append nothing: a log that takes no records can still be read."""

    def __init__(self, partition: Partition, clock: Clock, loading: asyncio.Lock, ended: Callable[[Any], None]) -> None:
        """`loading`: one log is replayed at a time. The loop's turns between slices are for requests, not for other
        logs."""
        self.partition = partition
        self.state = State.LOADING
        self._clock = clock
        self._loading = loading
        self._ended = ended
        self._leading, self._leader_epoch = partition.leading, partition.leader_epoch
        self._waiting: dict[Ticket, None] = {}
        """In the order in which they came, which a set would not keep."""
        self._is_asked = False
        self._timer: Timer | None = None
        self._timer_at = float("inf")
        self._deadline_ms: int | None = None
        self._blocked_since_ms: float | None = None
        self._stood_still_ms = 0.0
        self._task: asyncio.Task[None] | None = None

    # -- what is different from one kind to the other ---------------------------------------------------------

    @abstractmethod
    def _loads(self) -> Replayable:
        """What the log is replayed into."""

    @abstractmethod
    def _serve(self) -> None:
        """The log is loaded: the first step."""

    @abstractmethod
    def _handle(self, ticket: Ticket, request: Any) -> Decide: ...

    @abstractmethod
    def _on_due(self) -> None:
        """A deadline may be over, or an obstacle gone."""

    @abstractmethod
    def _batch_of(self, records: Sequence[Any], timestamp_ms: int) -> bytearray:
        """A step's records as one batch: all of them survive a failover, or none."""

    def _look_first(self, request: Any) -> Refused | None:
        """What has to be seen, or checked against the log, in the same breath as the step."""
        return None

    def _after(self, step: Any) -> None:  # noqa: B027 - most have nothing to do
        """It is appended. For what has to be done elsewhere."""

    def _on_end(self) -> None:  # noqa: B027 - most have nothing to do
        """It is over, for whatever reason."""

    @property
    def name(self) -> str:
        return f"{self.partition.topic.name}-{self.partition.index}"

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads the partition, in the same epoch, and has its log."""
        partition = self.partition
        return (
            partition.is_led_here
            and not partition.deleted
            and partition.log.failed is None
            and partition.leading is self._leading
            and partition.leader_epoch == self._leader_epoch
        )

    # -- its life ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """On the event loop."""
        if self.state is State.LOADING and self._task is None:
            self._task = asyncio.ensure_future(self._load())

    def end(self, why: str) -> None:
        """Whoever waits asks again: another broker, or this one when it has loaded the log anew."""
        if self.state is State.ENDED:
            return
        log.info("%s: the coordinator ends: %s", self.name, why)
        self.state = State.ENDED
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and self._task is not asyncio.current_task(self._task.get_loop()):
            self._task.cancel()
        self._on_end()
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting:
            resolve(ticket, Refused(ErrorCode.not_coordinator))
        self._ended(self)

    async def _load(self) -> None:
        try:
            problem = await self._replay()
            if problem is None and self.is_current and self.state is State.LOADING:
                self._serve()
            else:
                self.end(problem or "it is led no more")
        except Exception:
            log.exception("%s could not be loaded", self.name)
            self.end("it could not be loaded")

    async def _replay(self) -> str | None:
        """Why it cannot be served, or None."""
        partition = self.partition
        end = partition.log.end_offset
        async with self._loading:
            refused = await replay_log(partition, self._loads(), end)
        if refused is not None:
            return f"its log cannot be read: {refused.message or refused.error.name}"
        # What is above the watermark may yet be lost, if this broker is: nobody must see it before (SAFETY 20).
        while self.is_current and (partition.high_watermark < end or self._obstacle() is not None):
            await self._pause(end)
        return None

    async def _pause(self, end: int) -> None:
        """Until the watermark has come to the end, or a little while."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(RETRY_MS, lambda: resolve(woken, None))
        if self.partition.high_watermark < end:
            self.partition.when_acknowledged(end, lambda _: resolve(woken, None))
        try:
            await woken
        finally:
            timer.cancel()

    # -- steps ------------------------------------------------------------------------------------------------

    def ask(self, request: Any) -> Ticket | Refused:
        if self.state is State.LOADING:
            return Refused(ErrorCode.coordinator_load_in_progress)
        is_read = isinstance(request, self.reads)
        self._is_asked |= not is_read
        refused = self._refusal_of_read() if is_read else self._refusal()
        if refused is None:
            refused = self._look_first(request)
        if refused is not None:
            return refused
        if self.state is State.ENDED:
            return Refused(ErrorCode.not_coordinator)
        ticket: Ticket = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = None
        self._step(self._handle(ticket, request), ticket)
        return ticket

    def _step(self, decide: Decide, asking: Ticket | None = None) -> None:
        try:
            step = decide(int(self._elapsed_ms()), self._clock.now_ms())
            refused = self._append(step)
        except Exception:
            log.exception("%s: a step failed", self.name)
            if asking is not None:
                self._answer(asking, Refused(ErrorCode.unknown_server_error))
            self.end("a step failed, so what the machine knows may be more than what its log says")
            return
        if refused is not None:
            self.end(f"its log did not take a record: {refused.message or refused.error.name}")
            return
        self._let_go(step.answers)
        self._deadline_ms = step.deadline_ms
        self._arm()
        self._after(step)

    def _append(self, step: Step) -> Refused | None:
        """As one batch. Not as a producer's: no limit of a topic is for these."""
        if not step.records:
            return None
        partition = self.partition
        batch = memoryview(self._batch_of(step.records, self._clock.now_ms()))
        header = read_header(batch)
        refused = partition.refusal_for(ALL) or partition.log.refusal(len(batch), header.record_count)
        if refused is not None:
            return refused
        base_offset = partition.log.end_offset
        stamp(batch, base_offset, partition.leader_epoch)
        partition.log.append(stamped(header, base_offset, partition.leader_epoch), batch)
        partition.on_appended()
        return None

    def _let_go(self, answers: Answers) -> None:
        """When the watermark has come to where the log ends now: also reads wait for what they have seen."""
        if not answers or self.state is State.ENDED:
            return
        end = self.partition.log.end_offset
        if end <= self.partition.high_watermark:
            self._settle(answers, ErrorCode.none)
        else:
            self.partition.when_acknowledged(end, lambda error: self._settle(answers, error))

    def _settle(self, answers: Answers, error: ErrorCode) -> None:
        if error is ErrorCode.none:
            for ticket, reply in answers:
                self._answer(ticket, reply)
        elif error is ErrorCode.not_enough_replicas_after_append and self.is_current:
            # It is in the log, and nobody knows yet whether it stays: what the machine knows is the same.
            for ticket, _ in answers:
                self._answer(ticket, Refused(ErrorCode.coordinator_not_available, "not enough replicas are in sync"))
        else:
            self.end(f"what was appended is not acknowledged: {error.name}")

    def _answer(self, ticket: Ticket, reply: Any) -> None:
        self._waiting.pop(ticket, None)
        resolve(ticket, reply)

    # -- what stands in the way -------------------------------------------------------------------------------

    def _obstacle(self) -> Refused | None:
        """Why nothing can be appended now. To ask a log takes space for it: one without records is not asked before
        there is a request, so that fifty partitions of which most are empty take none."""
        partition = self.partition
        refused = partition.refusal_for(ALL)
        if refused is None and (partition.log.end_offset > 0 or self._is_asked):
            refused = partition.log.refusal(ROOM_BYTES)
        return None if refused is None else Refused(ErrorCode.coordinator_not_available, refused.message)

    def _refusal(self) -> Refused | None:
        """Why no step can be taken now. As long as there is a reason, the clock stands still."""
        if not self.is_current:
            self.end("it is led no more")
            return Refused(ErrorCode.not_coordinator)
        refused = self._obstacle()
        now_ms = self._clock.monotonic_ms()
        if refused is not None and self._blocked_since_ms is None:
            log.warning("%s: %s have to wait: %s", self.name, self.who, refused.message)
            self._blocked_since_ms = now_ms
            self._arm()
        elif refused is None and self._blocked_since_ms is not None:
            self._stood_still_ms += now_ms - self._blocked_since_ms
            self._blocked_since_ms = None
            log.info("%s: %s go on", self.name, self.who)
            self._arm()
        return refused

    def _refusal_of_read(self) -> Refused | None:
        if not self.is_current:
            self.end("it is led no more")
            return Refused(ErrorCode.not_coordinator)
        if self.partition.log.end_offset <= self.partition.high_watermark:
            return None
        refused = self.partition.refusal_for(ALL)
        return None if refused is None else Refused(ErrorCode.coordinator_not_available, refused.message)

    # -- time -------------------------------------------------------------------------------------------------

    def _elapsed_ms(self) -> float:
        now_ms = self._clock.monotonic_ms() if self._blocked_since_ms is None else self._blocked_since_ms
        return now_ms - self._stood_still_ms

    def _arm(self) -> None:
        """One timer, for the deadline or for another try. Most steps move the deadline to a later time: then the timer
        that is set stays as it is, and finds nothing to do."""
        if self.state is not State.SERVING:
            return
        if self._blocked_since_ms is not None:
            delay_ms = RETRY_MS
        elif self._deadline_ms is not None:
            delay_ms = max(self._deadline_ms - self._elapsed_ms(), 1.0)
        else:
            return
        at = self._clock.monotonic_ms() + delay_ms
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._clock.call_later(delay_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        if self.state is not State.SERVING:
            return
        if self._refusal() is not None:
            self._arm()
            return
        self._on_due()
