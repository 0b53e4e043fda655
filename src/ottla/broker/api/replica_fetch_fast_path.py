"""The fast path for the common case of a follower's fetch: one partition, at or near the log end, in the leader's
epoch.

Three brokers exchange two of these for every record that all replicas acknowledge, so they cost as much as a record.
What `fetch` determines for any request is known here from the previous one: the session, the partition, its watches.

Every other request takes the general path: another partition has changed too, the epoch differs, the histories may
diverge, a throttle applies, the read needs the disk, or it is time to look at all partitions. A request is passed on
before it has any effect; a parked one is handed over.

The compiled version (`_replica_link.pyx`) is used where it is built. The plain Python version here is the fallback, and
the oracle for tests of the compiled one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.broker.api.api import Buffers, ConnectionState
from ottla.broker.partition.fetch_sessions import FetchSession, ReportedState, SessionPartition
from ottla.broker.partition.partition import Partition
from ottla.broker.partition.pending_reply import PendingReply
from ottla.broker.partition.session_watches import PartitionKey, SessionWatches
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.machines.replication import LeaderReplication
from ottla.protocol.wire.fetch import partition_of_one
from ottla.protocol.wire.headers import request_header, response_header
from ottla.protocol.wire.primitives import I32, uuid_of
from ottla.protocol.wire.replica_fetch import (
    REQUEST_BYTES,
    VERSION,
    ReplicaFetchRequest,
    pack_answer,
    unpack_request,
)

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

REPLY_BYTES_MAX = 8 * 1024 * 1024
"""Upper limit of a reply, whatever the client asks for: a slow reader's reply stays in the broker's memory until it is
sent."""
WATERMARK_WAIT_MS = 10
"""How long a follower's fetch waits for records before it delivers a new high watermark on its own. In a stream the
next records come first, and no extra reply is sent."""

FETCH_KEY = 1
NEVER = float("inf")


class General(Protocol):
    """A request on the general path."""

    def expire(self) -> None:
        """Replies now with what there is."""
        ...


HandOver = Callable[["Broker", ConnectionState, memoryview, FetchSession, PendingReply[Buffers]], General]


class Place(NamedTuple):
    """A partition of the session."""

    key: PartitionKey
    followed: SessionPartition
    partition: Partition


def take(connection: ConnectionState, frame: memoryview) -> Buffers | PendingReply[Buffers] | None:
    """Handles a request, or returns None without any effect if it needs the general path."""
    link = connection.replica_link
    return None if link is None else link.take(frame)


def attach(
    broker: Broker, connection: ConnectionState, client_id: str | None, session: FetchSession, hand_over: HandOver
) -> None:
    """Lets the following requests of a follower's session on this connection take the fast path."""
    watching, link = session.watching, connection.replica_link
    if watching is None or not session.by_topic_id or (link is not None and session.turn is link):
        return
    prefix = request_header(FETCH_KEY, VERSION, 0, client_id)
    connection.replica_link = session.turn = ReplicaLink(broker, connection, prefix, session, watching, hand_over)


class PlainReplicaLink:
    """The fast path of one session, for as long as it follows the same partitions. One request is in flight at a
    time."""

    __slots__ = (
        "_began_s",
        "_broker",
        "_connection",
        "_correlation_id",
        "_due",
        "_frame",
        "_hand_over",
        "_hurry",
        "_one",
        "_pending",
        "_place",
        "_places",
        "_prefix",
        "_session",
        "_watching",
    )

    _frame: memoryview
    _one: ReplicaFetchRequest
    _place: Place

    def __init__(
        self,
        broker: Broker,
        connection: ConnectionState,
        prefix: bytes,
        session: FetchSession,
        watching: SessionWatches,
        hand_over: HandOver,
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._prefix = prefix
        """The header of the follower's requests. The correlation id in it is ignored."""
        self._correlation_id = 0
        self._session = session
        self._watching = watching
        self._hand_over = hand_over
        self._places: dict[tuple[bytes, int], Place] = {}
        self._pending: PendingReply[Buffers] | None = None
        self._began_s = 0.0
        self._due = Alarm(broker, self.expire)
        self._hurry = Alarm(broker, self.expire)

    def take(self, frame: memoryview) -> Buffers | PendingReply[Buffers] | None:
        """Replies at once, parks the request, or returns None if it needs the general path."""
        prefix, session = self._prefix, self._session
        body_at = len(prefix)
        if len(frame) != body_at + REQUEST_BYTES or session.turn is not self:
            return None
        if frame[:4] != prefix[:4] or frame[8:body_at] != prefix[8:]:
            return None
        one = unpack_request(frame[body_at:])
        if one is None or one.session_id != session.session_id or one.session_epoch != session.next_epoch:
            return None
        if one.min_bytes != 1 or one.max_wait_ms <= 0 or one.isolation_level:
            return None
        return self._begin(frame, one)

    def _begin(self, frame: memoryview, one: ReplicaFetchRequest) -> Buffers | PendingReply[Buffers] | None:
        place = self._places.get((one.topic_id, one.partition)) or self._learn(one)
        broker = self._broker
        now_ms = broker.clock.monotonic_ms()
        if place is None or not self._is_plain(place, one, now_ms):
            return None
        partition = place.partition
        found = self._read(partition, one)
        if found is None:
            return None
        leading = partition.leading
        assert leading is not None
        self._frame, self._one, self._place = frame, one, place
        (self._correlation_id,) = I32.unpack_from(frame, 4)
        broker.meters.requests[FETCH_KEY, VERSION] += 1
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

    def _is_plain(self, place: Place, one: ReplicaFetchRequest, now_ms: float) -> bool:
        log, watching = place.partition.log, self._watching
        return (
            one.last_fetched_epoch == log.epochs.latest
            and one.offset <= log.end_offset  # so the histories do not diverge
            and self._is_served(place, one)
            and _has_no_other(watching.changed, place.key)
            and now_ms < watching.all_at_ms
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
        return self._pending is None or self._pending.done()

    def _park(self, leading: LeaderReplication) -> PendingReply[Buffers]:
        pending = self._pending = PendingReply[Buffers]()
        self._watching.waiting = self
        self._connection.waiting_fetch = self
        self._due.set(self._one.max_wait_ms, self._session.used_ms)
        self._hurry.at_ms = NEVER
        if min(leading.high_watermark, self._one.offset) > self._one.high_watermark:
            self.hurry()
        return pending

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
            pending = self._pending
            assert pending is not None
            self._stop_waiting()
            self._watching.changed.clear()
            pending.complete(self._answer(found, has_waited=True))

    def expire(self) -> None:
        """Replies with the data there is."""
        if not self.ended:
            self._go_on_generally().expire()

    def _go_on_generally(self) -> General:
        pending = self._pending
        assert pending is not None
        self._stop_waiting()
        return self._hand_over(self._broker, self._connection, self._frame, self._session, pending)

    def _stop_waiting(self) -> None:
        self._pending = None
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
        return [response_header(FETCH_KEY, VERSION, self._correlation_id), *body]


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


def _best_link() -> type[PlainReplicaLink]:
    try:
        from ottla.broker.api import _replica_link
    except ImportError:
        return PlainReplicaLink
    return _replica_link.ReplicaLink


ReplicaLink = _best_link()
