"""A consumer's membership in a group, as seen while the user fetches records.

Partitions change owners only during a fetch, so the user never works on a revoked partition: records returned earlier
are processed by then. Callbacks run at the same time, first `on_revoked` with the partitions still assigned, then
`on_assigned`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from ottla.client.brokers import Brokers
from ottla.client.consumer.fetcher import FetchSettings
from ottla.client.consumer.partition_reader import PartitionReader
from ottla.client.consumer.subscription import Subscription
from ottla.client.consumer.types import READ_COMMITTED, TopicPartition
from ottla.client.errors import ClientError, CommitFailedError
from ottla.client.groups.coordinator import Coordinator
from ottla.client.groups.membership import Membership
from ottla.client.groups.offsets import Committed, GroupOffsets, ToCommit
from ottla.client.groups.positions import Positions
from ottla.client.groups.settings import GroupSettings
from ottla.client.groups.steps import Handover, Identity
from ottla.client.metadata import Metadata

CLOSE_TIMEOUT_MS = 10_000
"""Timeout of the last commit, so that a group without a coordinator does not keep a program from ending."""

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""A function or a coroutine function."""


class GroupSession:
    """Connects the group's state machine with the consumer."""

    def __init__(
        self,
        settings: GroupSettings,
        membership: Membership,
        offsets: GroupOffsets,
        positions: Positions,
        subscription: Subscription,
        pattern_interval_ms: int,
    ) -> None:
        self.settings = settings
        self.positions = positions
        self._membership = membership
        self._offsets = offsets
        self._subscription = subscription
        self._pattern_interval_s = pattern_interval_ms / 1000
        self._on_assigned: RebalanceCallback | None = None
        self._on_revoked: RebalanceCallback | None = None
        self._on_lost: RebalanceCallback | None = None
        self._handing: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._users_here = 0
        self._wake_fetcher: Callable[[], None] = lambda: None
        self._notify: Callable[[], None] = lambda: None
        self._fault: ClientError | None = None

    # Lifecycle.

    def start(self, notify: Callable[[], None], wake_fetcher: Callable[[], None]) -> None:
        """Starts the background tasks. `notify` wakes a user that waits for records."""
        self._wake_fetcher = wake_fetcher
        self._notify = notify
        self.user_works()
        self._spawn(self._membership.run(notify))
        self._spawn(self._membership.follow_pattern(self._pattern_interval_s))
        self._spawn(self.positions.run(self._found_positions))
        if self.settings.auto_commit:
            self._spawn(self.positions.commit_regularly(self.settings.auto_commit_interval_ms))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_task_ended)
        self._tasks.append(task)

    def _on_task_ended(self, task: asyncio.Task[Any]) -> None:
        """Reports the failure of a background task to the user. Background tasks never end by themselves."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault if isinstance(fault, ClientError) else _as_client_error(fault)
            self._notify()

    async def close(self, *, all_processed: bool) -> None:
        """Commits, revokes everything and leaves. The last returned records are committed only with `all_processed`."""
        try:
            if all_processed:
                self.positions.settle()
            await self._give_up_all()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._membership.leave()

    async def _give_up_all(self) -> None:
        if self._handing is not None:
            await asyncio.wait([self._handing])
        if self.settings.auto_commit:
            await self.positions.commit_settled(CLOSE_TIMEOUT_MS)
        if self._membership.subscribed and self._subscription.readers:
            await _call(self._on_revoked, self._subscription.readers)

    def subscribe(
        self,
        topics: frozenset[str] | re.Pattern[str],
        on_assigned: RebalanceCallback | None,
        on_revoked: RebalanceCallback | None,
        on_lost: RebalanceCallback | None,
    ) -> None:
        """Subscribes to topics or to a pattern, with callbacks for rebalances."""
        if self._subscription.readers and not self._membership.subscribed:
            raise ClientError("partitions were assigned manually; use either assign or subscribe")
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        self._membership.subscribe(topics)

    def check_assignable(self) -> None:
        """Raises ClientError if the group assigns the partitions."""
        if self._membership.subscribed:
            raise ClientError("the group assigns the partitions of this consumer; use either assign or subscribe")

    def on_metadata(self) -> None:
        """Passes new metadata to the member."""
        self._membership.on_metadata()

    # The user.

    @property
    def identity(self) -> Identity | None:
        """The identity for commits, or None if this is no member."""
        return self._membership.identity()

    @property
    def is_settled(self) -> bool:
        """Whether this is a member with its whole assignment."""
        return self._membership.member.is_settled

    @property
    def wants_user(self) -> bool:
        """Whether a handover waits for the next fetch."""
        return self._membership.member.handover is not None

    def user_came(self) -> None:
        """The user asks for records, so it has processed those returned before."""
        self.positions.settle()
        self._users_here += 1
        member = self._membership.member
        if member.is_asleep:
            self._membership.wake()
        member.user_came()

    def user_went(self) -> None:
        """The user's fetch ended, with records or without."""
        self._users_here -= 1
        if self._users_here == 0:
            self.user_works()

    def user_works(self) -> None:
        """Restarts the poll interval, because the user is alive."""
        self._membership.member.user_went(asyncio.get_running_loop().time())

    def done_with_one(self, reader: PartitionReader) -> bool:
        """Marks a record of this reader as processed. Returns whether a handover is waiting."""
        reader.settle()
        self.user_works()
        return self.wants_user

    async def attend(self) -> None:
        """Executes a pending handover. Raises the exception of a callback, or the failure that stopped the member."""
        while self._handing is not None or self._membership.member.handover is not None:
            handing = self._handing or self._begin_handover()
            if handing is asyncio.current_task():
                raise ClientError("a rebalance callback cannot fetch records")
            try:
                await asyncio.shield(handing)
            finally:
                if handing.done():
                    self._handing = None
        failure = self._fault or self._membership.member.failure
        if failure is not None:
            raise failure

    def _begin_handover(self) -> asyncio.Task[None]:
        handover = self._membership.member.handover
        assert handover is not None
        self._membership.member.handover_began()
        self._handing = asyncio.create_task(self._hand_over(handover))
        return self._handing

    async def _hand_over(self, handover: Handover) -> None:
        try:
            try:
                await self._give_up(handover)
            finally:
                self._subscription.give_up(handover.give_up)
                self._subscription.take(handover.take)
                await _call(self._on_assigned, handover.take)
        finally:
            self._membership.member.handed_over()
            self._membership.wake()
            self.positions.look_up()
            self._wake_fetcher()

    async def _give_up(self, handover: Handover) -> None:
        if handover.lost and self._on_lost is None:
            with contextlib.suppress(CommitFailedError):  # the callback may not know that it can no longer commit
                await _call(self._on_revoked, handover.give_up)
        elif handover.lost:
            await _call(self._on_lost, handover.give_up)
        elif handover.give_up:
            if self.settings.auto_commit:
                await self.positions.commit_settled(self.settings.session_timeout_ms)
            await _call(self._on_revoked, handover.give_up)

    async def commit(self, offsets: ToCommit) -> None:
        """Commits offsets."""
        await self.positions.commit(offsets)

    async def committed(self, partitions: Iterable[TopicPartition]) -> Committed:
        """Returns the committed offsets."""
        return await self._offsets.committed(partitions)

    def _found_positions(self) -> None:
        self._wake_fetcher()
        self._notify()


def open_session(
    settings: GroupSettings,
    fetching: FetchSettings,
    brokers: Brokers,
    metadata: Metadata,
    subscription: Subscription,
) -> GroupSession:
    """Creates the session of a consumer that is not started yet."""
    coordinator = Coordinator(brokers, metadata, settings.group_id)
    membership = Membership(settings, brokers, metadata, subscription, coordinator)
    require_stable = fetching.isolation_level == READ_COMMITTED
    offsets = GroupOffsets(coordinator, fetching.request_timeout_ms, require_stable=require_stable)
    positions = Positions(offsets, subscription.readers, fetching.reset_to, membership.identity)
    return GroupSession(settings, membership, offsets, positions, subscription, fetching.replica_lease_ms)


def _as_client_error(fault: BaseException) -> ClientError:
    failure = ClientError(f"a background task of the group failed: {type(fault).__name__}: {fault}")
    failure.__cause__ = fault
    return failure


async def _call(callback: RebalanceCallback | None, partitions: Iterable[TopicPartition]) -> None:
    named = sorted(partitions)
    if callback is not None and named:
        outcome = callback(named)
        if inspect.isawaitable(outcome):
            await outcome
