"""One partition of a coordinator's topic while this broker leads it: its machine and its pending requests (ADR 10).

    LOADING ---- the log is replayed, and the high watermark has reached its end ----> SERVING
       '---------------- leadership is lost, the log fails, a step fails ----------------'----> ENDED

Any failure ends the shard. Nothing is undone: this broker, or another one, starts over from the log.

**When nothing can be appended.** Before each step, the shard checks whether the log accepts records and enough replicas
are in sync. If not, the step is refused and the machine's clock stops until appends are possible again. Clients cannot
be heard during that time, so their sessions must not expire because of it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar, Protocol

from ottla.broker.blocking_jobs import resolve
from ottla.broker.coordinators.log_replay import Replayable, replay_log
from ottla.broker.partition.partition import ALL, Partition
from ottla.ports import Clock, Timer
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import read_header, stamp, stamped
from ottla.reach import branch

_ASKED_EARLY = branch("a request arrives while a coordinator loads", __name__)
_LOADING = branch("a coordinator begins to load", __name__)
_STEP_APPENDED = branch("a coordinator appends a decision", __name__)
_NOT_ACKNOWLEDGED = branch("a coordinator resigns because a decision was not acknowledged", __name__)
_UNCERTAIN = branch("a coordinator cannot tell whether a decision is committed", __name__)
_WAITS = branch("a loading coordinator waits for the high watermark", __name__)
_BLOCKED = branch("a coordinator stops its clock because nothing can be appended", __name__)

log = logging.getLogger("ottla.coordinators")

RETRY_MS = 100.0
"""Delay before appending is tried again."""
ROOM_BYTES = 4096
"""Space that most steps need in the log. A step that needs more and does not get it ends the shard."""

Ticket = asyncio.Future[Any]
Answers = Sequence[tuple[Ticket, Any]]


class Step(Protocol):
    """The result of one step of a machine."""

    @property
    def records(self) -> Sequence[Any]:
        """The records to append, as one batch; empty if the step changes nothing."""
        ...

    @property
    def answers(self) -> Answers:
        """The replies of this step. They are sent once the high watermark reaches the log end."""
        ...

    @property
    def deadline_ms(self) -> int | None:
        """Elapsed time at which the machine's next timer is due, or None if no timer is set."""
        ...


Decide = Callable[[int, int], Step]
"""A step of the machine, given the elapsed time and the wall-clock time."""


class State(Enum):
    """The life cycle of a shard."""

    LOADING = "loading"
    SERVING = "serving"
    ENDED = "ended"


class LedShard(ABC):
    """Runs a coordinator's machine on one partition. Subclasses supply the machine."""

    who: ClassVar[str] = "clients"
    """The clients that have to wait while nothing can be appended, for log messages."""
    reads: ClassVar[tuple[type, ...]] = ()
    """Requests that append nothing, so they are served even if the log accepts no records."""

    def __init__(self, partition: Partition, clock: Clock, loading: asyncio.Lock, ended: Callable[[Any], None]) -> None:
        """`loading` is held while a log is replayed, so that one log is replayed at a time: between two slices the
        event loop serves requests, not other replays."""
        self.partition = partition
        self.state = State.LOADING
        self._clock = clock
        self._loading = loading
        self._ended = ended
        self._leading, self._leader_epoch = partition.leading, partition.leader_epoch
        self._waiting: dict[Ticket, None] = {}
        """An ordered set: tickets in order of arrival."""
        self._is_asked = False
        self._timer: Timer | None = None
        self._timer_at = float("inf")
        self._deadline_ms: int | None = None
        self._blocked_since_ms: float | None = None
        self._stood_still_ms = 0.0
        self._task: asyncio.Task[None] | None = None

    # -- what subclasses define -------------------------------------------------------------------------------

    @abstractmethod
    def _loads(self) -> Replayable:
        """Returns the target of the replay."""

    @abstractmethod
    def _serve(self) -> None:
        """Takes the first step after the log is loaded."""

    @abstractmethod
    def _handle(self, ticket: Ticket, request: Any) -> Decide: ...

    @abstractmethod
    def _on_due(self) -> None:
        """Handles an expired deadline, or the end of an obstacle."""

    @abstractmethod
    def _batch_of(self, records: Sequence[Any], timestamp_ms: int) -> bytearray:
        """Encodes a step's records as one batch, so that a failover keeps all of them or none."""

    def _look_first(self, request: Any) -> Refused | None:
        """Refreshes or checks whatever must be current when the step is taken, atomically on the event loop."""
        return None

    def _after(self, step: Any) -> None:  # noqa: B027 - most have nothing to do
        """Called when a step is appended, to begin work outside of the machine."""

    def _on_end(self) -> None:  # noqa: B027 - most have nothing to do
        """Called when the shard ends, for whatever reason."""

    @property
    def name(self) -> str:
        """The topic and the index of the partition, for log messages."""
        return f"{self.partition.topic.name}-{self.partition.index}"

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads the partition, in the same epoch, with a working log."""
        partition = self.partition
        return (
            partition.is_led_here
            and not partition.deleted
            and partition.log.failed is None
            and partition.leading is self._leading
            and partition.leader_epoch == self._leader_epoch
        )

    # -- life cycle -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts loading. Must be called on the event loop."""
        if self.state is State.LOADING and self._task is None:
            self._task = asyncio.ensure_future(self._load())

    def end(self, why: str) -> None:
        """Ends the shard. Pending requests fail with NOT_COORDINATOR, so clients ask again: another broker, or this one
        once it has reloaded the log."""
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
                self.end(problem or "this broker no longer leads it")
        except Exception:
            log.exception("%s could not be loaded", self.name)
            self.end("it could not be loaded")

    async def _replay(self) -> str | None:
        """Replays the log. Returns the reason why the partition cannot be served, or None."""
        partition = self.partition
        end = partition.log.end_offset
        _LOADING()
        async with self._loading:
            refused = await replay_log(partition, self._loads(), end)
        if refused is not None:
            return f"its log cannot be read: {refused.message or refused.error.name}"
        # Records above the high watermark may still be lost with this broker, so nothing is served before the watermark
        # reaches them (safety: after-failover).
        while self.is_current and (partition.high_watermark < end or self._obstacle() is not None):
            await self._pause(end)
        return None

    async def _pause(self, end: int) -> None:
        """Waits until the high watermark reaches `end`, but not longer than the retry delay."""
        _WAITS()
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
        """Hands a request to the machine. Returns a future of the reply, or the refusal."""
        if self.state is State.LOADING:
            _ASKED_EARLY()
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
            self.end("a step failed, so the state may be ahead of its log")
            return
        if refused is not None:
            self.end(f"its log rejected a record: {refused.message or refused.error.name}")
            return
        self._let_go(step.answers)
        self._deadline_ms = step.deadline_ms
        self._arm()
        self._after(step)

    def _append(self, step: Step) -> Refused | None:
        """Appends a step's records as one batch. Topic limits for producers' batches do not apply."""
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
        _STEP_APPENDED()
        partition.on_appended()
        return None

    def _let_go(self, answers: Answers) -> None:
        """Releases replies once the high watermark reaches the current log end. Replies to reads wait as well, for the
        state that they have seen."""
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
            _UNCERTAIN()
            # The records are in the log, and it is not known yet whether they stay. The machine's state matches the
            # log.
            for ticket, _ in answers:
                self._answer(ticket, Refused(ErrorCode.coordinator_not_available, "not enough replicas are in sync"))
        else:
            _NOT_ACKNOWLEDGED()
            self.end(f"the append was not acknowledged: {error.name}")

    def _answer(self, ticket: Ticket, reply: Any) -> None:
        self._waiting.pop(ticket, None)
        resolve(ticket, reply)

    # -- obstacles --------------------------------------------------------------------------------------------

    def _obstacle(self) -> Refused | None:
        """Returns the reason why nothing can be appended now. Asking a log for room allocates space, so an empty log is
        not asked before the first request: of fifty partitions most are empty, and those take no space."""
        partition = self.partition
        refused = partition.refusal_for(ALL)
        if refused is None and (partition.log.end_offset > 0 or self._is_asked):
            refused = partition.log.refusal(ROOM_BYTES)
        return None if refused is None else Refused(ErrorCode.coordinator_not_available, refused.message)

    def _refusal(self) -> Refused | None:
        """Returns the reason why no step can be taken now. The machine's clock stands still while there is one."""
        if not self.is_current:
            self.end("this broker no longer leads it")
            return Refused(ErrorCode.not_coordinator)
        refused = self._obstacle()
        now_ms = self._clock.monotonic_ms()
        if refused is not None and self._blocked_since_ms is None:
            _BLOCKED()
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
            self.end("this broker no longer leads it")
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
        """Sets the one timer, for the deadline or for a retry. Most steps move the deadline to a later time; the timer
        then stays as it is and finds nothing to do."""
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
