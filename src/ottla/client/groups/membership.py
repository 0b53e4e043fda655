"""Keeps a consumer in its group: sends the requests of the member's state machine and passes on the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from uuid import uuid4

from ottla.client.brokers import Brokers, new_backoff
from ottla.client.consumer.subscription import Subscription
from ottla.client.errors import BrokerRefusedError, ClientError
from ottla.client.groups.classic import ClassicMember
from ottla.client.groups.consumer_protocol import ConsumerMember
from ottla.client.groups.coordinator import MEMBERSHIP, OFFSETS, Coordinator
from ottla.client.groups.member import MOVING
from ottla.client.groups.requests import request_for
from ottla.client.groups.settings import GroupSettings
from ottla.client.groups.steps import (
    Ask,
    CountPartitions,
    ErrorReply,
    Identity,
    Join,
    NoReply,
    Outcome,
    PartitionCounts,
    Wait,
)
from ottla.client.metadata import PASSING_FAILURES, ClusterView, Metadata, fetch_all
from ottla.protocol.model.errors import ErrorCode

RETRY_PATTERN_S = 1.0
RETRY_LEAVE_S = 0.1
LEAVE_TIMEOUT_S = 3.0
"""A short timeout, because a coordinator notices by itself that a member is gone."""


def new_member(settings: GroupSettings) -> ClassicMember | ConsumerMember:
    """Creates the state machine for the configured protocol."""
    if settings.protocol == "consumer":
        return ConsumerMember(settings, str(uuid4()))
    return ClassicMember(settings)


class Membership:
    """Runs a member. `notify` is called when the user's side has a handover to execute or a failure to raise."""

    def __init__(
        self,
        settings: GroupSettings,
        brokers: Brokers,
        metadata: Metadata,
        subscription: Subscription,
        coordinator: Coordinator,
    ) -> None:
        self.settings = settings
        self.member = new_member(settings)
        self._brokers = brokers
        self._metadata = metadata
        self._subscription = subscription
        self._coordinator = coordinator
        self._pattern: re.Pattern[str] | None = None
        self._pattern_changed = asyncio.Event()
        self._changed = asyncio.Event()
        self._seen: ClusterView | None = None
        self._notify: Callable[[], None] = lambda: None

    @property
    def subscribed(self) -> bool:
        """Whether topics or a pattern were subscribed to."""
        return self._pattern is not None or self.member.topics is not None

    def identity(self) -> Identity | None:
        """Returns the identity for commits. Without a subscription, anyone may commit to a group without members."""
        return self.member.identity if self.subscribed else Identity()

    def subscribe(self, topics: frozenset[str] | re.Pattern[str]) -> None:
        """Subscribes to topics or to a pattern."""
        self._pattern = None
        if isinstance(topics, re.Pattern):
            self._pattern = topics
        else:
            self._subscribe_to(topics)
        self._pattern_changed.set()

    def _subscribe_to(self, topics: frozenset[str]) -> None:
        self._subscription.subscribe_in_group(topics)
        self.member.subscribe(topics)
        self.wake()

    def wake(self) -> None:
        """Runs the state machine again."""
        self._changed.set()

    def on_metadata(self) -> None:
        """Passes new metadata to the member."""
        view = self._metadata.view
        if view is self._seen:
            return
        self._seen = view
        counts = {name: len(topic.partitions) for name, topic in view.topics.items()}
        ids = {topic.id: name for name, topic in view.topics.items() if topic.id is not None}
        self.member.learn_topics(counts, ids)
        self._tell_user()
        self.wake()

    async def run(self, notify: Callable[[], None]) -> None:
        """Runs until the task is cancelled."""
        self._notify = notify
        backoff = new_backoff()
        while True:
            self._changed.clear()
            step = self.member.next_step(self._now_s())
            if isinstance(step, Wait):
                await self._wait(step.until_s)
                continue
            outcome = await self._ask(step)
            self.member.heard(step, outcome, self._now_s())
            await self._learn_wanted()
            self._tell_user()
            if not _is_final(outcome):
                self._coordinator.forget()
            if isinstance(outcome, NoReply | ErrorReply) and not _is_news(step, outcome):
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.reset()

    async def _learn_wanted(self) -> None:
        if self.member.wants_metadata:
            self._metadata.mark_stale()
            with contextlib.suppress(*PASSING_FAILURES):
                await self._metadata.refresh()
        self.on_metadata()

    async def follow_pattern(self, interval_s: float) -> None:
        """Looks for matching topics periodically until the task is cancelled."""
        while True:
            self._pattern_changed.clear()
            pause_s = None if self._pattern is None else interval_s
            if self._pattern is not None and not await self._match(self._pattern):
                pause_s = RETRY_PATTERN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._pattern_changed.wait()

    async def _match(self, pattern: re.Pattern[str]) -> bool:
        """Subscribes to the matching topics. Returns False if no broker replied."""
        try:
            view, _ = await fetch_all(self._brokers)
        except (*PASSING_FAILURES, BrokerRefusedError):
            return False
        names = [name for name, topic in view.topics.items() if not topic.internal]
        self._subscribe_to(frozenset(filter(pattern.fullmatch, names)))
        return True

    async def leave(self) -> None:
        """Leaves the group on a best-effort basis."""
        farewell = self.member.farewell()
        if farewell is None:
            return
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                while not _is_final(await self._ask(farewell, OFFSETS)):
                    self._coordinator.forget()
                    await asyncio.sleep(RETRY_LEAVE_S)

    async def _wait(self, until_s: float | None) -> None:
        pause_s = None if until_s is None else max(0.0, until_s - self._now_s())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._changed.wait()

    async def _ask(self, ask: Ask, purpose: str = MEMBERSHIP) -> Outcome:
        try:
            if isinstance(ask, CountPartitions):
                return await self._count(ask)
            request = request_for(ask, self.settings)
            what = f"{request.api.name} of {self._coordinator.group_text}"
            reply = await self._coordinator.ask(
                request.api, request.body, purpose=purpose, what=what, timeout_ms=request.timeout_ms
            )
            return request.read(reply)
        except PASSING_FAILURES:
            return NoReply()
        except BrokerRefusedError as refusal:
            return ErrorReply(refusal.error, str(refusal))

    async def _count(self, ask: CountPartitions) -> PartitionCounts:
        self._metadata.want(ask.topics)
        await self._metadata.refresh()
        if any(self._is_untold(name) for name in ask.topics):
            await self._metadata.refresh()  # the first refresh had already been in progress
        topics = self._metadata.view.topics
        return PartitionCounts({name: len(topics[name].partitions) for name in ask.topics if name in topics})

    def _is_untold(self, topic: str) -> bool:
        return self._metadata.cached(topic) is None and self._metadata.topic_error(topic) is None

    def _tell_user(self) -> None:
        if self.member.handover is not None or self.member.failure is not None:
            self._notify()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _is_final(outcome: Outcome) -> bool:
    """Returns whether the coordinator handled the request, rather than pointing elsewhere."""
    if isinstance(outcome, ErrorReply):
        return outcome.error not in MOVING
    return not isinstance(outcome, NoReply)


def _is_news(step: Ask, outcome: Outcome) -> bool:
    """Returns whether this is a rebalance, after which the member continues at once with another request."""
    is_rebalance = isinstance(outcome, ErrorReply) and outcome.error is ErrorCode.rebalance_in_progress
    return is_rebalance and not isinstance(step, Join)
