"""One partition of `__consumer_offsets` while this broker leads it: its coordinator, and what waits for it (ADR 10).

    LOADING ---- the log is replayed, and the watermark has come to its end ----> SERVING
       '---------------- leadership is lost, the log fails, a step fails ------------'----> ENDED

Whatever goes wrong ends it. Nothing is undone: who led before begins anew from the log, or another broker does.

**What cannot be appended now.** Before each step it is asked whether the log takes records and enough replicas are in
sync. If not, the step is refused, and the coordinator's clock stands still until it can go on: in that time no member
could be heard, and none of them must be taken for gone because of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from ottla.broker.blocking import resolve
from ottla.broker.groups.batches import batch_of
from ottla.broker.groups.loading import replay_log
from ottla.broker.groups.topic_news import TopicNews
from ottla.broker.partition import ALL, Partition
from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.coordinator import GroupCoordinator
from ottla.machines.groups.replies import Reply
from ottla.machines.groups.requests import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    DescribeConsumerGroup,
    DescribeGroup,
    FetchOffsets,
    ListGroups,
    Request,
    TopicsChanged,
)
from ottla.machines.groups.shard import Answer, Instant, Step
from ottla.model.errors import ErrorCode, Refused
from ottla.ports import Clock, Timer
from ottla.records.batch import read_header, stamp, stamped

log = logging.getLogger("ottla.groups")

RETRY_MS = 100.0
"""How long to wait before it is tried again to append."""
ROOM_BYTES = 4096
"""What most steps need in the log. One that needs more, and does not get it, ends the term."""

READS = (FetchOffsets, ListGroups, DescribeGroup, DescribeConsumerGroup)
"""They append nothing: a log that takes no records can still be read."""

Ticket = asyncio.Future[Reply]
Decide = Callable[[GroupCoordinator, Instant], Step]


class Surroundings(NamedTuple):
    """What all shards of a broker share."""

    clock: Clock
    config: GroupConfig
    news: TopicNews
    loading: asyncio.Lock
    """One log is replayed at a time: the loop's turns between slices are for requests, not for other logs."""


class State(Enum):
    LOADING = "loading"
    SERVING = "serving"
    ENDED = "ended"


class LedShard:
    def __init__(self, partition: Partition, around: Surroundings, ended: Callable[[LedShard], None]) -> None:
        self.partition = partition
        self.state = State.LOADING
        self._around = around
        self._clock = around.clock
        self._ended = ended
        self._leading, self._leader_epoch = partition.leading, partition.leader_epoch
        self.machine = GroupCoordinator(around.config)
        self._waiting: dict[Ticket, None] = {}
        """In the order in which they came, which a set would not keep."""
        self._is_asked = False
        self._timer: Timer | None = None
        self._timer_at = float("inf")
        self._deadline_ms: int | None = None
        self._blocked_since_ms: float | None = None
        self._stood_still_ms = 0.0
        self._deleted: set[str] = set()
        """Topics that went, of which the machine has not been told."""
        self._news_seen = -1
        self._task: asyncio.Task[None] | None = None

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
        async with self._around.loading:
            refused = await replay_log(partition, self.machine, end)
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

    def _serve(self) -> None:
        self.state = State.SERVING
        self._around.news.refresh()
        deleted = self._around.news.missing(self.machine.tables.offsets.committed.values()) | self._deleted
        self._deleted = set()
        self._step(lambda machine, now: machine.loaded(self._topics(deleted), now))

    # -- steps ------------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> Ticket | Refused:
        if self.state is State.LOADING:
            return Refused(ErrorCode.coordinator_load_in_progress)
        is_read = isinstance(request, READS)
        self._is_asked |= not is_read
        refused = self._refusal_of_read() if is_read else self._refusal()
        if refused is not None:
            return refused
        if isinstance(request, ConsumerHeartbeat):
            if request.member_epoch == JOIN_EPOCH:
                # A member often joins right after its topic was made, and would hear of it seconds later.
                self._around.news.refresh()
            self._see_topics()
        if self.state is State.ENDED:
            return Refused(ErrorCode.not_coordinator)
        ticket: Ticket = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = None
        self._step(lambda machine, now: machine.handle(ticket, request, now), ticket)
        return ticket

    def _step(self, decide: Decide, asking: Ticket | None = None) -> None:
        try:
            step = decide(self.machine, self._now())
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

    def _append(self, step: Step) -> Refused | None:
        """As one batch. Not as a producer's: no limit of a topic is for these."""
        if not step.records:
            return None
        partition = self.partition
        batch = memoryview(batch_of(step.records, self._clock.now_ms()))
        header = read_header(batch)
        refused = partition.refusal_for(ALL) or partition.log.refusal(len(batch), header.record_count)
        if refused is not None:
            return refused
        base_offset = partition.log.end_offset
        stamp(batch, base_offset, partition.leader_epoch)
        partition.log.append(stamped(header, base_offset, partition.leader_epoch), batch)
        partition.on_appended()
        return None

    def _let_go(self, answers: tuple[Answer, ...]) -> None:
        """When the watermark has come to where the log ends now: also reads wait for what they have seen."""
        if not answers or self.state is State.ENDED:
            return
        end = self.partition.log.end_offset
        if end <= self.partition.high_watermark:
            self._settle(answers, ErrorCode.none)
        else:
            self.partition.when_acknowledged(end, lambda error: self._settle(answers, error))

    def _settle(self, answers: tuple[Answer, ...], error: ErrorCode) -> None:
        if error is ErrorCode.none:
            for ticket, reply in answers:
                self._answer(ticket, reply)
        elif error is ErrorCode.not_enough_replicas_after_append and self.is_current:
            # It is in the log, and nobody knows yet whether it stays: what the machine knows is the same.
            for ticket, _ in answers:
                self._answer(ticket, Refused(ErrorCode.coordinator_not_available, "not enough replicas are in sync"))
        else:
            self.end(f"what was appended is not acknowledged: {error.name}")

    def _answer(self, ticket: Ticket, reply: Reply) -> None:
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
            log.warning("%s: groups have to wait: %s", self.name, refused.message)
            self._blocked_since_ms = now_ms
            self._arm()
        elif refused is None and self._blocked_since_ms is not None:
            self._stood_still_ms += now_ms - self._blocked_since_ms
            self._blocked_since_ms = None
            log.info("%s: groups go on", self.name)
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

    def _now(self) -> Instant:
        return Instant(int(self._elapsed_ms()), self._clock.now_ms())

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
        self.on_news()
        if self.state is State.SERVING:
            self._step(lambda machine, now: machine.tick(now))

    # -- topics -----------------------------------------------------------------------------------------------

    def note_deleted(self, topics: Iterable[str]) -> None:
        self._deleted.update(topics)

    def on_news(self) -> None:
        """A coordinator without groups that the server assigns hears of topics when it gets one: until then, only of
        those that are gone."""
        is_concerned = self.state is State.SERVING and (self._deleted or self.machine.tables.consumer)
        if is_concerned and self._refusal() is None:
            self._see_topics()

    def _see_topics(self) -> None:
        if self._news_seen == self._around.news.version and not self._deleted:
            return
        deleted, self._deleted = self._deleted, set()
        self._step(lambda machine, now: machine.topics_changed(self._topics(deleted), now))

    def _topics(self, deleted: Iterable[str]) -> TopicsChanged:
        news = self._around.news
        matching = {regex: news.matching(regex) for regex in self.machine.regexes()}
        regexes = {regex: names for regex, names in matching.items() if not isinstance(names, Refused)}
        self._news_seen = news.version
        return TopicsChanged(topics=news.facts, deleted=frozenset(deleted), regexes=regexes)
