"""Fetches the partitions that this broker follows from one leader, on one connection with one request in flight. Live
and lagging partitions have separate fetchers (`lanes`).

The request is parked at the leader until there is something new. If the set of partitions changes in the meantime, the
fetcher asks the leader to reply at once and sends the new set with the next request: a new partition must not wait
until an idle one has data.

While records stream into one partition, a reply is applied and the next request sent as soon as the reply arrives,
without a turn through the event loop. Everything else goes through the fetch loop.

The cost of a round depends on what is new, not on what is followed: only partitions of the last reply, and those whose
disk has made progress, can have a new position. All of them are checked periodically.

Synced ends travel on the same connection, in messages of their own (`synced_reports`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.broker.clock_sleep import sleep
from ottla.broker.cluster.catch_up import CatchUp, Flush, Key
from ottla.broker.cluster.replica_session import WAIT_MS_MAX, ReplicaSession
from ottla.broker.cluster.replication_lanes import LIVE, Lane
from ottla.broker.cluster.synced_reports import SyncedReports
from ottla.machines.controller.state import Member
from ottla.net.connection import Address, Connection
from ottla.net.errors import ClientError, ConnectionLostError
from ottla.net.security import NO_SECURITY, ConnectionSecurity
from ottla.ports import Allocate, Clock
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.fetch import FetchPartition
from ottla.protocol.wire.fetch_client import (
    FetchedPartition,
    FetchResponse,
    encode_fetch_request,
    parse_fetch_response,
)
from ottla.protocol.wire.primitives import DECODE_ERRORS, MalformedRequest
from ottla.protocol.wire.replica_fetch import unpack_answer
from ottla.protocol.wire.replica_wait import API_KEY as WAIT_OVER_KEY
from ottla.reach import branch

if TYPE_CHECKING:
    from ottla.broker.partition.follower_partition import FollowerPartition
    from ottla.broker.partition.partition import Partition
    from ottla.broker.partition.replication_throttles import ReplicationThrottles

_OUT_OF_RANGE = branch("a follower begins anew at the start of its leader's log", __name__)

log = logging.getLogger("ottla.replication")

FETCH_KEY, FETCH_VERSION = 1, 18
"""All brokers of a cluster speak the versions of the same release or of the one before it."""
WHAT = "fetching from the leader"
CONNECT_TIMEOUT_MS = 2000
REPLY_TIMEOUT_MS = WAIT_MS_MAX + 10_000
RETRY_MS = 100.0
REPLY_BYTES_MAX = 8 * 1024 * 1024
ALL_EVERY_MS = 500.0
THROTTLED_MS_MAX = 500.0
SESSION_ERRORS = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)


class PlainRounds:
    """The rounds on one connection that are completed without the fetch loop."""

    __slots__ = ("connection", "is_taken", "is_taking", "look", "reply", "session")

    def __init__(self, connection: Connection, session: ReplicaSession) -> None:
        self.connection = connection
        self.session = session
        self.look: Callable[[memoryview], bool] | None = None
        """Completes a round if it can; called with each reply as it arrives."""
        self.reply: asyncio.Future[memoryview] | None = None
        """Resolves to the first reply that the fetch loop has to handle."""
        self.is_taken = False
        """That reply was applied, but there was no plain request to send after it."""
        self.is_taking = False
        """A reply is being applied. The next request follows at once and reports what the log has acknowledged."""


class ReplicaFetcher:
    """Fetches one lane of partitions from one leader.

    It is large because one round has one state: the partitions, those that are held back, throttled or touched, and the
    request that waits at the leader decide together what the next request asks for.
    """

    def __init__(
        self,
        clock: Clock,
        address: Address,
        member: Member,
        throttles: ReplicationThrottles,
        lane: Lane = LIVE,
        change_lane: Callable[[Partition], None] = lambda _: None,
        flush: Flush | None = None,
        allocate: Allocate = bytearray,
        security: ConnectionSecurity = NO_SECURITY,
    ) -> None:
        self._allocate = allocate
        self._security = security
        self._clock = clock
        self.address = address
        self.lane = lane
        self._change_lane = change_lane
        self._catch_up = CatchUp(flush)
        self.member = member
        """The incarnation that it fetches for."""
        self._throttles = throttles
        self._throttled: set[Key] = set()
        """Partitions that a throttle excludes from requests. A timer includes them again."""
        self._followed: dict[Key, Partition] = {}
        self._held_back: set[Key] = set()
        """Partitions that had an error recently. They are excluded until a timer releases them."""
        self._touched: dict[Key, None] = {}
        """Partitions whose position may have changed since the last request."""
        self._all_at_ms = 0.0
        self._are_lags_known = False
        self._changed = asyncio.Event()
        self._waits_at_leader = False
        self._rounds: PlainRounds | None = None
        self.connection: Connection | None = None
        self._reports = SyncedReports(clock, self.member)
        self._task: asyncio.Task[None] | None = None

    def follow(self, partition: Partition) -> None:
        """Adds a partition."""
        following = partition.following
        assert following is not None
        key = _key_of(partition)
        self._followed[key] = partition
        self._reports.note(key, partition)
        following.on_ready = self._on_changed
        self._on_changed()
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    def leave(self, partition: Partition) -> None:
        """Removes a partition."""
        key = _key_of(partition)
        self._followed.pop(key, None)
        self._held_back.discard(key)
        self._throttled.discard(key)
        self._reports.forget(key)
        self._on_changed()
        self._catch_up.on_progress()

    @property
    def is_idle(self) -> bool:
        """Whether it has no partitions."""
        return not self._followed

    async def stop(self) -> None:
        """Cancels the fetch loop and disconnects from the leader."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._disconnect()

    def on_acknowledged(self, partition: Partition) -> None:
        """Notes that this broker's disk has more of the partition."""
        self._catch_up.on_progress()
        key = _key_of(partition)
        self._touched[key] = None
        self._reports.note(key, partition)
        if self._rounds is None or not self._rounds.is_taking:
            self._reports.send_soon()

    def on_in_sync(self, partition: Partition) -> None:
        """Ends the throttling of a partition that has joined the ISR."""
        if _key_of(partition) in self._throttled:
            self._end_throttling()

    # -- fetch loop -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                self.connection = await Connection.open(
                    self.address,
                    client_id=f"ottla-replica-{self.member.broker_id}",
                    timeout_ms=CONNECT_TIMEOUT_MS,
                    request_timeout_ms=REPLY_TIMEOUT_MS,
                    allocate=self._allocate,
                    security=self._security,
                )
                self._reports.connection = self.connection
                await self._fetch_on(self.connection)
            except (ClientError, OSError, MalformedRequest) as error:
                log.debug("fetching from %s: %s", self.address, error)
                await sleep(self._clock, RETRY_MS)
            finally:
                self._disconnect()

    def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        self._reports.connection = None
        if connection is not None:
            connection.end(ConnectionLostError("the replica fetcher is reconnecting"))

    async def _fetch_on(self, connection: Connection) -> None:
        """Sends requests until a new connection is needed."""
        session = ReplicaSession(*self.member)
        self._reports.start_over()
        rounds = self._rounds = PlainRounds(connection, session)
        rounds.look = partial(self._take_at_once, rounds)
        while True:
            body = self._next_plain_request(session) or self._next_request(session)
            if body is None:
                await self._changed.wait()
                continue
            rounds.is_taken = False
            rounds.reply = connection.request(FETCH_KEY, FETCH_VERSION, [body], what=WHAT, look=rounds.look)
            self._report()
            answer = await self._answered(rounds.reply)
            if rounds.is_taken:
                continue
            response = parse_fetch_response(answer, FETCH_VERSION)
            if ErrorCode(response.error) in SESSION_ERRORS:
                session.reset()
                continue
            session.on_reply(response.session_id)
            self._take(session.asked, response)
            if not self._are_lags_known:
                self._note_silence(session.asked.keys() - _answered(response))
            if self.lane.waits_for_disk:
                await self._catch_up.end_round(
                    self._followed, _size_of(response), self._unthrottled_lag_bytes(), self._clock.monotonic_ms()
                )

    def _take_at_once(self, rounds: PlainRounds, answer: memoryview) -> bool:
        """Applies a reply and sends the next request, if both are plain. Returns False if the fetch loop has to
        continue; `rounds.is_taken` then says whether the reply was applied."""
        if self._changed.is_set() or not self._are_lags_known or self.lane.waits_for_disk:
            return False
        try:
            one = unpack_answer(answer)
        except (*DECODE_ERRORS, MalformedRequest):
            return False
        if one is None or not one[0]:
            return False
        session_id, topic_id, marks, records = one
        session = rounds.session
        self._waits_at_leader, rounds.is_taking = False, True
        try:
            session.on_reply(session_id)
            self._take_one(session.asked, topic_id, FetchedPartition(*marks, None, -1, records))
        finally:
            rounds.is_taking = False
        body = self._next_plain_request(session)
        if body is None:
            rounds.is_taken = True
            self._reports.send_soon()
            return False
        self._waits_at_leader = True
        rounds.connection.request(FETCH_KEY, FETCH_VERSION, [body], what=WHAT, look=rounds.look, reply=rounds.reply)
        self._report()
        return True

    def _report(self) -> None:
        self._reports.repeat_all(self._followed)
        self._reports.send()

    def _next_plain_request(self, session: ReplicaSession) -> bytes | None:
        """Returns the same as `_next_request` for the case that only one partition may have a new position, which is
        the rule while records stream into one partition. Returns None if there is more to check."""
        if len(self._touched) != 1 or session.is_new or not self._are_lags_known or self.lane.waits_for_disk:
            return None
        if self._changed.is_set() or self._clock.monotonic_ms() >= self._all_at_ms:
            return None
        (key,) = self._touched
        wanted = self._next_fetch(key, self._followed.get(key))
        if wanted is None:
            return None
        self._touched.clear()
        self._reports.forget(key)
        return session.pack_one(key, wanted, REPLY_BYTES_MAX)

    def _next_request(self, session: ReplicaSession) -> bytes | None:
        """Returns the next request, or None if there is nothing to fetch. Synced ends in the request need no report."""
        now_ms = self._clock.monotonic_ms()
        touched, self._touched = self._touched, {}
        is_all_due = session.is_new or self._changed.is_set() or now_ms >= self._all_at_ms
        if not is_all_due and self._are_lags_known and not self.lane.waits_for_disk:
            changes = {key: self._next_fetch(key, self._followed.get(key)) for key in touched}
            if any(changes.values()) or any(key not in changes for key in session.asked):
                for key, wanted in changes.items():
                    if wanted is not None:
                        self._reports.forget(key)
                return encode_fetch_request(FETCH_VERSION, session.request_again(changes, self._round_bytes))
        self._changed.clear()
        self._all_at_ms = now_ms + ALL_EVERY_MS
        found = {key: self._next_fetch(key, partition) for key, partition in self._followed.items()}
        asked = {key: wanted for key, wanted in found.items() if wanted is not None}
        for key in asked:
            self._reports.forget(key)
        self._are_lags_known = all(map(self._is_lag_known, asked))
        if not asked:
            return None
        request = session.request(asked, self._round_bytes, WAIT_MS_MAX if self._are_lags_known else 0)
        return encode_fetch_request(FETCH_VERSION, request)

    async def _answered(self, reply: asyncio.Future[memoryview]) -> memoryview:
        self._waits_at_leader = True
        if self._changed.is_set():
            self._on_changed()
        try:
            return await reply
        finally:
            self._waits_at_leader = False

    def _on_changed(self) -> None:
        """Handles a change in the set of partitions: tells a leader that holds a parked request to reply at once."""
        self._changed.set()
        connection = self.connection
        if self._waits_at_leader and connection is not None and connection.is_open:
            self._waits_at_leader = False
            connection.send_unanswered(WAIT_OVER_KEY, 0, [])

    def _is_lag_known(self, key: Key) -> bool:
        following = self._followed[key].following
        return following is None or following.lag.is_known

    @property
    def _round_bytes(self) -> int:
        return self._catch_up.round_bytes if self.lane.waits_for_disk else REPLY_BYTES_MAX

    def _unthrottled_lag_bytes(self) -> int:
        free = [each for each in self._followed.values() if not self._throttles.is_follower_throttled(each)]
        return sum([each.following.lag.size_bytes for each in free if each.following is not None])

    def _next_fetch(self, key: Key, partition: Partition | None) -> FetchPartition | None:
        if partition is None or key in self._held_back or partition.following is None:
            return None
        bytes_max = min(self.lane.partition_bytes_max, self._round_bytes)
        if self._throttles.is_follower_throttled(partition):
            bytes_max = min(bytes_max, self._throttles.follower_allowance())
            if not bytes_max:
                self._throttle(key)
                return None
        fetch = partition.following.next_fetch(bytes_max)
        if fetch is None and partition.log.truncating:
            # An earlier role started the truncation, so this fetcher is not notified when it finishes.
            self._clock.call_later(RETRY_MS, self._on_changed)
        return fetch

    def _take(self, asked: Mapping[Key, FetchPartition], response: FetchResponse) -> None:
        for topic, answers in response.topics:
            if not isinstance(topic, UUID):
                continue
            for answer in answers:
                self._take_one(asked, topic, answer)

    def _take_one(self, asked: Mapping[Key, FetchPartition], topic: UUID, answer: FetchedPartition) -> None:
        key = (topic, answer.partition)
        self._touched[key] = None
        partition, wanted = self._followed.get(key), asked.get(key)
        if partition is None or partition.following is None or wanted is None:
            return
        if self._throttles.is_follower_throttled(partition):
            self._throttles.on_fetched(len(answer.records))
        error = partition.following.take(wanted, answer)
        if error is not ErrorCode.none:
            self._on_error(key, partition.following, error, answer.log_start_offset)
        elif partition.following.lag.is_lagging != self.lane.waits_for_disk:
            self._change_lane(partition)

    def _throttle(self, key: Key) -> None:
        """Excludes a partition until the throttle allows more. The throttle may also be removed in the meantime."""
        if not self._throttled:
            self._clock.call_later(min(self._throttles.follower_wait_ms(), THROTTLED_MS_MAX), self._end_throttling)
        self._throttled.add(key)

    def _end_throttling(self) -> None:
        if self._throttled:
            self._throttled.clear()
            self._on_changed()

    def _note_silence(self, asked: Iterable[Key]) -> None:
        """Notes a lag of zero for partitions missing from a reply: a session omits partitions without news. Otherwise
        no request would ever be parked."""
        for key in sorted(asked):
            partition = self._followed.get(key)
            following = partition.following if partition is not None else None
            if partition is not None and following is not None and not following.lag.is_known:
                following.lag.note(0, 0, 0)
                if following.lag.is_lagging != self.lane.waits_for_disk:
                    self._change_lane(partition)

    def _on_error(self, key: Key, following: FollowerPartition, error: ErrorCode, leader_start: int) -> None:
        if error is ErrorCode.offset_out_of_range:
            # The leader's log starts above the local log end, or ends below it in a way that epochs do not show.
            _OUT_OF_RANGE()
            following.rebuild(max(leader_start, 0))
            return
        # Leader or epoch do not match: one side has not heard of the last election yet.
        log.debug("partition %d of %s at %s: %s", key[1], key[0], self.address, error.name)
        self._held_back.add(key)
        self._clock.call_later(RETRY_MS, lambda: self._let_go(key))

    def _let_go(self, key: Key) -> None:
        """Releases a partition. Only the timer decides, not the clock: a timer that fires slightly early would
        otherwise leave it excluded for ever."""
        self._held_back.discard(key)
        self._on_changed()


def _key_of(partition: Partition) -> Key:
    return partition.topic.id, partition.index


def _size_of(response: FetchResponse) -> int:
    return sum([len(answer.records) for _, answers in response.topics for answer in answers])


def _answered(response: FetchResponse) -> set[Key]:
    return {(topic, each.partition) for topic, found in response.topics if isinstance(topic, UUID) for each in found}
