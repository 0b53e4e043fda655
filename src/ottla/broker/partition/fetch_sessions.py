"""Incremental fetch sessions (KIP-227): the broker remembers a reader's partitions, so that requests and replies carry
only changes.

    id 0,  epoch -1   no session wanted
    any,   epoch 0    a new session, with everything in the request (an old session with this id ends)
    id n,  epoch -1   session n ends
    id n,  epoch e    the next step of session n: the request names what was added, changed and forgotten
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.broker.partition.session_watches import ParkedFetch, PartitionKey, SessionWatches
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest, PartitionData
from ottla.protocol.wire.produce import TopicKey

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
IDLE_MS = 120_000
"""A session that was idle for this long may be evicted in favour of a new one."""


class ReportedState(NamedTuple):
    """The fields of a partition's last reply, besides records."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    error: int


@dataclass(slots=True)
class SessionPartition:
    """A partition of a session."""

    wanted: FetchPartition
    told: ReportedState | None = None


@dataclass(slots=True)
class FetchSession:
    """The session of one reader."""

    session_id: int
    by_topic_id: bool
    next_epoch: int = 1
    used_ms: float = 0.0
    followed: dict[PartitionKey, SessionPartition] = field(default_factory=dict)
    watching: SessionWatches | None = None
    """Only for sessions of followers."""
    turn: ParkedFetch | None = None
    """Serves the session's plain requests and caches its partitions on this broker."""

    def update(self, request: FetchRequest) -> None:
        """Applies the changes that a request makes to the session's partitions."""
        watching = self.watching
        for topic, partitions in request.topics:
            for partition in partitions:
                key = (topic, partition.partition)
                known = self.followed.get(key)
                if known is None:
                    self.followed[key] = SessionPartition(partition)
                    self.turn = None
                else:
                    known.wanted = partition
                if watching is not None:
                    watching.changed[key] = None
        for topic, indexes in request.forgotten:
            for index in indexes:
                self.followed.pop((topic, index), None)
                self.turn = None
                if watching is not None:
                    watching.forget((topic, index))

    def changed(self, watching: SessionWatches) -> list[tuple[TopicKey, FetchPartition]]:
        """Returns the partitions that may have something new for a follower."""
        followed = self.followed
        return [(key[0], followed[key].wanted) for key in watching.changed if key in followed]

    def end(self) -> None:
        """Stops watching partitions."""
        if self.watching is not None:
            self.watching.end()


class FetchPlan(NamedTuple):
    """The partitions that one request reads, and the rules for trimming its reply."""

    session: FetchSession | None
    partitions: Sequence[tuple[TopicKey, FetchPartition]]
    """All partitions; empty for the session of a follower."""
    is_incremental: bool
    error: ErrorCode = ErrorCode.none

    @property
    def session_id(self) -> int:
        """The id for the reply; 0 without a session."""
        return self.session.session_id if self.session is not None else NO_SESSION

    @property
    def is_empty(self) -> bool:
        """True if the request reads no partition."""
        if self.session is not None and self.session.watching is not None:
            return not self.session.followed
        return not self.partitions

    def to_look_at(self) -> Sequence[tuple[TopicKey, FetchPartition]]:
        """Returns the partitions to look at now. In a follower's session these are only the ones that may have
        something new."""
        session = self.session
        if session is None or session.watching is None or not self.is_incremental:
            return self.partitions
        return session.changed(session.watching)

    def trimmed(self, answers: Sequence[tuple[TopicKey, PartitionData]]) -> list[tuple[TopicKey, PartitionData]]:
        """Removes partitions without news from an incremental reply. Partitions that had records go to the end of the
        queue, so that busy ones do not starve the others."""
        if self.session is None:
            return list(answers)
        kept: list[tuple[TopicKey, PartitionData]] = []
        followed = self.session.followed
        for topic, data in answers:
            entry = followed.get((topic, data.partition))
            if entry is None:
                continue
            told = ReportedState(data.high_watermark, data.last_stable_offset, data.log_start_offset, data.error)
            is_news = (
                data.records_size
                or data.error
                or data.diverging is not None
                or data.preferred_read_replica >= 0
                or told != entry.told
            )
            if not self.is_incremental or is_news:
                kept.append((topic, data))
            entry.told = told
            if data.records_size:
                followed[topic, data.partition] = followed.pop((topic, data.partition))
        return kept


class FetchSessions:
    """The fetch sessions of a broker, in a bounded number of slots."""

    def __init__(self, slots: int, now_ms: Callable[[], float], new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._now_ms = now_ms
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int) -> FetchSession | None:
        """Returns the session with this id."""
        return self._sessions.get(session_id)

    def note_used(self, session: FetchSession, now_ms: float) -> None:
        """Advances a session to its next step and makes it the last candidate for eviction."""
        session.next_epoch = 1 if session.next_epoch == EPOCH_MAX else session.next_epoch + 1
        session.used_ms = now_ms
        self._sessions.move_to_end(session.session_id)

    def plan(self, request: FetchRequest, *, by_topic_id: bool) -> FetchPlan:
        """Opens, continues or ends a session according to the request, and returns what to read."""
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._end(request.session_id)
            session = None
            if request.session_epoch == INITIAL_EPOCH:
                session = self._open(request, by_topic_id)
            return FetchPlan(session, list(_all(request)), is_incremental=False)
        return self._next_step(request, by_topic_id)

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()

    def _end_watching(self, now_ms: float) -> None:
        """Ends the watches of idle sessions, so that partitions stop notifying readers that have left. A reader that
        returns after all looks at everything once."""
        for session in self._sessions.values():
            if now_ms - session.used_ms < IDLE_MS:
                return
            session.end()

    def _open(self, request: FetchRequest, by_topic_id: bool) -> FetchSession | None:
        """Opens a session, or returns None if all slots are in use: the reader then gets a full reply without a
        session."""
        now = self._now_ms()
        self._end_watching(now)
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.used_ms < IDLE_MS:
                return None
            self._end(oldest.session_id)
        session_id = self._new_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_id()
        session = FetchSession(session_id, by_topic_id, used_ms=now)
        if request.replica_id >= 0:
            session.watching = SessionWatches()
        session.update(request)
        self._sessions[session_id] = session
        return session

    def _next_step(self, request: FetchRequest, by_topic_id: bool) -> FetchPlan:
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchPlan(None, [], is_incremental=True, error=ErrorCode.fetch_session_id_not_found)
        if request.session_epoch != session.next_epoch:
            return FetchPlan(None, [], is_incremental=True, error=ErrorCode.invalid_fetch_session_epoch)
        if by_topic_id != session.by_topic_id:
            return FetchPlan(None, [], is_incremental=True, error=ErrorCode.fetch_session_topic_id_error)
        self.note_used(session, self._now_ms())
        session.update(request)
        if session.watching is None:
            partitions = [(topic, entry.wanted) for (topic, _), entry in session.followed.items()]
            return FetchPlan(session, partitions, is_incremental=True)
        if session.watching.is_all_due(session.used_ms):
            session.watching.changed |= dict.fromkeys(session.followed)
        return FetchPlan(session, [], is_incremental=True)


def _all(request: FetchRequest) -> Iterator[tuple[TopicKey, FetchPartition]]:
    for topic, partitions in request.topics:
        for partition in partitions:
            yield topic, partition
