"""The fast path for the common case of a follower's fetch: one partition, at or near the log end, in the leader's
epoch.

Three brokers exchange two of these for every record that all replicas acknowledge, so they cost as much as a record.
What `fetch` determines for any request is known here from the previous one: the session, the partition, its watches.

Every other request takes the general path: another partition has changed too, the epoch differs, the histories may
diverge, a throttle applies, or the read needs the disk. A request is passed on before it has any effect; a parked one
is handed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.broker.api.api import Buffers, Context
from ottla.broker.partition.fetch_sessions import FetchSession, ReportedState, SessionPartition
from ottla.broker.partition.partition import Partition
from ottla.broker.partition.session_watches import PartitionKey, SessionWatches
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.machines.replication import LeaderReplication
from ottla.protocol.wire.fetch import partition_of_one
from ottla.protocol.wire.primitives import uuid_of
from ottla.protocol.wire.replica_fetch import ReplicaFetchRequest, pack_answer, unpack_request

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

REPLY_BYTES_MAX = 8 * 1024 * 1024
"""Upper limit of a reply, whatever the client asks for: a slow reader's reply stays in the broker's memory until it is
sent."""
WATERMARK_WAIT_MS = 10
"""How long a follower's fetch waits for records before it delivers a new high watermark on its own. In a stream the
next records come first, and no extra reply is sent."""

NEVER = float("inf")


class General(Protocol):
    """A request on the general path."""

    def expire(self) -> None:
        """Replies now with what there is."""
        ...


HandOver = Callable[[Context, ReplicaFetchRequest, FetchSession, "asyncio.Future[Buffers]"], General]


class Place(NamedTuple):
    """A partition of the session."""

    key: PartitionKey
    followed: SessionPartition
    partition: Partition


def take(ctx: Context, body: memoryview, hand_over: HandOver) -> Buffers | asyncio.Future[Buffers] | None:
    """Handles a request, or returns None without any effect if it needs the general path."""
    one = unpack_request(body)
    if one is None:
        return None
    session = ctx.broker.fetch_sessions.find(one.session_id)
    if session is None or session.next_epoch != one.session_epoch or not session.by_topic_id:
        return None
    turn = session.turn
    if not isinstance(turn, ReplicaFastPath):
        if session.watching is None:
            return None
        turn = session.turn = ReplicaFastPath(ctx.broker, session, session.watching, hand_over)
    return turn.begin(ctx, one)


class ReplicaFastPath:
    """The fast path of one session, for as long as it follows the same partitions. One request is in flight at a
    time."""

    __slots__ = (
        "_began_s",
        "_broker",
        "_ctx",
        "_due",
        "_future",
        "_hand_over",
        "_hurry",
        "_one",
        "_place",
        "_places",
        "_session",
        "_watching",
    )

    _ctx: Context
    _one: ReplicaFetchRequest
    _place: Place

    def __init__(self, broker: Broker, session: FetchSession, watching: SessionWatches, hand_over: HandOver) -> None:
        self._broker = broker
        self._session = session
        self._watching = watching
        self._hand_over = hand_over
        self._places: dict[tuple[bytes, int], Place] = {}
        self._future: asyncio.Future[Buffers] | None = None
        self._began_s = 0.0
        self._due = Alarm(broker, self.expire)
        self._hurry = Alarm(broker, self.expire)

    def begin(self, ctx: Context, one: ReplicaFetchRequest) -> Buffers | asyncio.Future[Buffers] | None:
        """Replies at once, parks the request, or returns None if it needs the general path."""
        place = self._places.get((one.topic_id, one.partition)) or self._learn(one)
        broker = self._broker
        now_ms = broker.clock.monotonic_ms()
        if place is None or not self._is_plain(place, one):
            return None
        partition = place.partition
        found = self._read(partition, one)
        if found is None:
            return None
        leading = partition.leading
        assert leading is not None
        self._ctx, self._one, self._place = ctx, one, place
        self._began_s = broker.clock.seconds()
        broker.fetch_sessions.note_used(self._session, now_ms)
        place.followed.wanted = partition_of_one(one)
        self._note_follower(partition, leading, one)
        if found.size_bytes:
            self._watching.changed.clear()
            return self._answer(found, has_waited=False)
        self._watching.changed[place.key] = None
        return self._park(leading)

    # -- conditions -------------------------------------------------------------------------------------------

    def _learn(self, one: ReplicaFetchRequest) -> Place | None:
        key: PartitionKey = uuid_of(one.topic_id), one.partition
        followed, partition = self._session.followed.get(key), self._watching.watched(key)
        if followed is None or partition is None:
            return None
        place = self._places[one.topic_id, one.partition] = Place(key, followed, partition)
        return place

    def _is_plain(self, place: Place, one: ReplicaFetchRequest) -> bool:
        log, watching = place.partition.log, self._watching
        return (
            one.min_bytes == 1
            and one.max_wait_ms > 0
            and not one.isolation_level
            and one.last_fetched_epoch == log.epochs.latest
            and one.offset <= log.end_offset  # so the histories do not diverge
            and self._is_served(place, one)
            and _has_no_other(watching.changed, place.key)
            and not watching.has_ended
        )

    def _is_served(self, place: Place, one: ReplicaFetchRequest) -> bool:
        partition, broker = place.partition, self._broker
        return (
            partition.leading is not None
            and not partition.deleted
            and partition.leader_epoch == one.leader_epoch
            and not broker.stopping
            and broker.metadata.knows_replica(one.replica_id, one.replica_epoch)
            and not broker.throttles.is_leader_throttled(partition, one.replica_id)
        )

    def _read(self, partition: Partition, one: ReplicaFetchRequest) -> Slice | None:
        """Returns the records, or None if they must be read from the disk or are gone."""
        log, offset = partition.log, one.offset
        if offset == log.end_offset:
            return Slice([], 0, offset)
        if offset < log.start_offset:
            return None
        bytes_max = min(one.partition_max_bytes, one.max_bytes, self._broker.config.fetch_max_bytes, REPLY_BYTES_MAX)
        found = log.read(offset, bytes_max, log.end_offset)
        if isinstance(found, ColdRead):
            found.ended()
        return found if isinstance(found, Slice) and found.size_bytes else None

    # -- waiting ----------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True while no request of the follower waits."""
        return self._future is None or self._future.done()

    def _park(self, leading: LeaderReplication) -> asyncio.Future[Buffers]:
        future = self._future = asyncio.get_running_loop().create_future()
        self._watching.waiting = self
        self._ctx.connection.waiting_fetch = self
        self._due.set(self._one.max_wait_ms, self._session.used_ms)
        self._hurry.at_ms = NEVER
        if min(leading.high_watermark, self._one.offset) > self._one.high_watermark:
            self.hurry()
        return future

    def hurry(self) -> None:
        """Replies within a short time, to deliver a new high watermark along with records that arrive by then."""
        if self._hurry.at_ms == NEVER:
            self._hurry.set(WATERMARK_WAIT_MS, self._broker.clock.monotonic_ms())

    def look_again(self) -> None:
        if self.ended:
            self._watching.waiting = None
            return
        place, one = self._place, self._one
        partition = place.partition
        is_plain = self._is_served(place, one) and _has_no_other(self._watching.changed, place.key)
        found = self._read(partition, one) if is_plain else None
        if found is None:
            self._go_on_generally()
        elif found.size_bytes:
            future = self._future
            assert future is not None
            self._stop_waiting()
            self._watching.changed.clear()
            future.set_result(self._answer(found, has_waited=True))

    def expire(self) -> None:
        """Replies with the data there is."""
        if not self.ended:
            self._go_on_generally().expire()

    def _go_on_generally(self) -> General:
        future = self._future
        assert future is not None
        self._stop_waiting()
        return self._hand_over(self._ctx, self._one, self._session, future)

    def _stop_waiting(self) -> None:
        self._future = None
        self._due.at_ms = self._hurry.at_ms = NEVER
        if self._watching.waiting is self:
            self._watching.waiting = None

    # -- progress and replies ---------------------------------------------------------------------------------

    def _note_follower(self, partition: Partition, leading: LeaderReplication, one: ReplicaFetchRequest) -> None:
        now_ms = self._session.used_ms
        ends = one.log_start_offset, one.acknowledged_end
        if leading.on_fetched(one.replica_id, one.replica_epoch, one.offset, now_ms, *ends):
            partition.on_watermark()
        if len(leading.isr) < len(partition.placement.replicas):
            self._broker.metadata.on_follower_heard(partition)

    def _answer(self, found: Slice, *, has_waited: bool) -> Buffers:
        (topic, index), followed, partition = self._place
        size_bytes = found.size_bytes
        marks = partition.high_watermark, partition.last_stable_offset, partition.log.start_offset
        followed.told = ReportedState(*marks, 0)
        broker, read = self._broker, partition.topic.traffic.by_replicas
        read.bytes += size_bytes
        read.records += found.next_offset - self._one.offset
        broker.traffic.by_replicas.note(size_bytes)
        broker.meters.fetch_s[True, has_waited].note(broker.clock.seconds() - self._began_s)
        body = pack_answer(self._session.session_id, topic, (index, 0, *marks), found.buffers, size_bytes)
        assert body is not None
        return [self._ctx.response_header, *body]


class Alarm:
    """A deadline that moves with every request. It is checked only when an earlier deadline would have expired, so that
    a request that is answered in time costs no timer."""

    __slots__ = ("_broker", "_looked_at_ms", "_ring", "at_ms")

    def __init__(self, broker: Broker, ring: Callable[[], None]) -> None:
        self._broker = broker
        self._ring = ring
        self.at_ms = NEVER
        self._looked_at_ms = NEVER

    def set(self, delay_ms: int, now_ms: float) -> None:
        """Moves the deadline."""
        self.at_ms = now_ms + delay_ms
        if self.at_ms < self._looked_at_ms:
            self._looked_at_ms = self.at_ms
            self._broker.deadlines.add(delay_ms, self)

    @property
    def ended(self) -> bool:
        """False: the alarm stays in the queue of deadlines."""
        return False

    def expire(self) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        if now_ms >= self._looked_at_ms - 1 or self._broker.stopping:
            self._looked_at_ms = NEVER
        if self.at_ms == NEVER:
            return
        left_ms = self.at_ms - now_ms
        if left_ms < 1 or self._broker.stopping:
            self.at_ms = NEVER
            self._ring()
        elif self._looked_at_ms == NEVER:
            self._looked_at_ms = self.at_ms
            self._broker.deadlines.add(int(left_ms), self)


def _has_no_other(changed: dict[PartitionKey, None], key: PartitionKey) -> bool:
    return not changed or (len(changed) == 1 and next(iter(changed)) == key)
