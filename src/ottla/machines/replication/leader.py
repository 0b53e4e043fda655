"""The leader's view of its followers, from which it derives the high watermark and the next ISR.

A follower has two ends. Its `end` is the offset from which it fetches: it has everything below. Its `acknowledged_end`
is the one that counts (safety: acknowledged-end): appended for `memory`, written for `cache`, synced for `disk`. A
follower of a `disk` topic fetches ahead of its syncs and reports synced ends separately (safety: synced-ends), so the
two differ.

The high watermark is the lowest acknowledged end of every replica that may be in the ISR, that is, in the stored ISR or
in the one that is being stored. A shrink therefore counts once it is confirmed, an expansion as soon as it is sent, and
an unknown outcome keeps the larger set (safety: isr-changes). The high watermark does not advance while the ISR is
smaller than min.insync.replicas, or while eligible replicas outside the ISR may be elected (safety: eligible-replicas).

Pure: time is passed in as a number, and the outcomes of ISR changes as calls. Each leader epoch has its own instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.reach import branch

_HELD = branch("the high watermark stands still below min.insync.replicas", __name__)

UNKNOWN = -1
NEVER = float("-inf")

Isr = Mapping[int, int]
"""Broker id to broker epoch: an ISR member is an incarnation of a broker (safety: isr-incarnations)."""


@dataclass(slots=True)
class Follower:
    """The state of one follower, as of its last fetch or acknowledgement."""

    broker_epoch: int
    caught_up_ms: float
    """Time at which it last had acknowledged everything that the leader had."""
    start: int = UNKNOWN
    """Start offset of its log."""
    end: int = UNKNOWN
    acknowledged_end: int = UNKNOWN
    heard_ms: float = 0.0
    leader_end_when_heard: int = UNKNOWN


class LeaderReplication:
    """The replication state of one partition during one leader epoch."""

    def __init__(
        self,
        broker_id: int,
        replicas: Iterable[int],
        isr: Isr,
        *,
        min_in_sync: int,
        high_watermark: int,
        end: int,
        acknowledged_end: int,
        lag_max_ms: float,
        now_ms: float,
        acknowledges_by_fetch: bool,
        has_eligible: bool = False,
    ) -> None:
        self._me = broker_id
        self._others = [replica for replica in replicas if replica != broker_id]
        self.isr: dict[int, int] = dict(isr)
        self.proposed: dict[int, int] | None = None
        """An ISR that is being stored, or that may be stored already."""
        self._has_eligible = has_eligible
        self._min_in_sync = min_in_sync
        self.high_watermark = high_watermark
        self._end = end
        self._acknowledged_end = acknowledged_end
        self._epoch_start = end
        """Log end offset at the start of this epoch. A replica needs everything below it to join the ISR."""
        self._lag_max_ms = lag_max_ms
        self._acknowledges_by_fetch = acknowledges_by_fetch
        self._followers: dict[int, Follower] = {}
        for member, broker_epoch in self.isr.items():
            if member != broker_id:
                # Its state is not known yet. It gets as much time as a follower that was in sync a moment ago.
                self._followers[member] = Follower(broker_epoch, now_ms)
        self._advance()

    # -- queries ----------------------------------------------------------------------------------------------

    @property
    def epoch_start(self) -> int:
        """The log end offset when the epoch began. A replica needs everything below it to join the ISR."""
        return self._epoch_start

    @property
    def has_enough_in_sync(self) -> bool:
        """True if acks=all produces are accepted. The required number is capped at the number of replicas."""
        return len(self.isr) >= min(self._min_in_sync, len(self._others) + 1)

    def follower(self, broker_id: int) -> Follower | None:
        """Returns what is known about a follower; None before its first fetch unless it was in the ISR."""
        return self._followers.get(broker_id)

    def in_sync_with(self, offset: int) -> list[tuple[int, int]]:
        """Returns (end, broker id) of the in-sync followers that have the record at this offset or are about to fetch
        it."""
        found = []
        for member in self.isr:
            follower = self._followers.get(member)
            if follower is not None and follower.start <= offset <= follower.end:
                found.append((follower.end, member))
        return found

    def least_end_needed(self) -> int:
        """Returns the offset below which every in-sync replica has everything."""
        ends = [follower.end for member in self.isr if (follower := self._followers.get(member)) is not None]
        return min([self._end, *ends])

    # -- events: each method returns whether the high watermark moved -----------------------------------------

    def on_own_progress(self, end: int, acknowledged_end: int) -> bool:
        """Records the end of the leader's own log and the part of it that counts as acknowledged."""
        self._end = end
        self._acknowledged_end = acknowledged_end
        return self._advance()

    def on_fetched(
        self,
        broker_id: int,
        broker_epoch: int,
        offset: int,
        now_ms: float,
        start: int = UNKNOWN,
        acknowledged_end: int = UNKNOWN,
    ) -> bool:
        """A follower of this leader epoch fetches from this offset, and its history does not diverge. Its log starts at
        `start`. The fetch carries the synced end if known; a report that arrived in the meantime may be further ahead.
        """
        follower = self._follower_for(broker_id, broker_epoch, now_ms)
        if follower is None:
            return False
        follower.start, follower.end = start, offset
        if self._acknowledges_by_fetch:
            follower.acknowledged_end = offset
        else:
            follower.acknowledged_end = min(max(follower.acknowledged_end, acknowledged_end), offset)
        self._note_lag(follower, now_ms)
        return self._advance()

    def on_acknowledged(self, broker_id: int, broker_epoch: int, end: int, now_ms: float) -> bool:
        """A follower reports its synced end. It counts only up to the follower's fetch offset, because only up to there
        is it known to describe the same history (safety: synced-ends)."""
        follower = self._followers.get(broker_id)
        if follower is None or follower.broker_epoch != broker_epoch or follower.end == UNKNOWN:
            return False
        follower.acknowledged_end = max(follower.acknowledged_end, min(end, follower.end))
        self._note_lag(follower, now_ms)
        return self._advance()

    def on_min_in_sync(self, min_in_sync: int) -> bool:
        """Changes `min.insync.replicas`."""
        self._min_in_sync = min_in_sync
        return self._advance()

    def on_lag_max(self, lag_max_ms: float) -> None:
        """Changes `replica.lag.time.max.ms`. Does not move the high watermark."""
        self._lag_max_ms = lag_max_ms

    def on_replicas(self, replicas: Iterable[int]) -> None:
        """Handles a reassignment: forgets brokers that are no longer replicas."""
        self._others = [replica for replica in replicas if replica != self._me]
        self._followers = {member: f for member, f in self._followers.items() if member in self._others}

    # -- the ISR ----------------------------------------------------------------------------------------------

    def next_isr(self, registered: Mapping[int, int], now_ms: float) -> dict[int, int] | None:
        """Returns the ISR to store now, or None if it need not change. `registered` has the broker epoch of every live
        broker."""
        if self.proposed is not None:
            return None
        wanted = {self._me: registered.get(self._me, self.isr.get(self._me, UNKNOWN))}
        for member in self._others:
            broker_epoch = self._in_sync_epoch(member, registered, now_ms)
            if broker_epoch is not None:
                wanted[member] = broker_epoch
        return wanted if wanted != self.isr else None

    def on_isr_sent(self, isr: Isr) -> None:
        """Records the ISR that is being stored; it counts as possible until the result is known."""
        self.proposed = dict(isr)

    def on_isr_stored(self, isr: Isr, *, has_eligible: bool = False) -> bool:
        """Takes the ISR that is in the store, written by this leader (and confirmed) or by the controller."""
        self.isr = dict(isr)
        self._has_eligible = has_eligible
        self.proposed = None
        return self._advance()

    def on_isr_refused(self) -> bool:
        """The conditional write failed: it will never be applied, and the stored ISR is about to arrive."""
        self.proposed = None
        return self._advance()

    # -- internals --------------------------------------------------------------------------------------------

    def _follower_for(self, broker_id: int, broker_epoch: int, now_ms: float) -> Follower | None:
        if broker_id not in self._others:
            return None
        follower = self._followers.get(broker_id)
        if follower is None or broker_epoch > follower.broker_epoch:
            # A new incarnation starts with nothing: the state of the old one does not apply to it.
            follower = self._followers[broker_id] = Follower(broker_epoch, NEVER)
        return follower if follower.broker_epoch == broker_epoch else None

    def _note_lag(self, follower: Follower, now_ms: float) -> None:
        """Marks the follower as caught up now or as of its previous report. During a stream of appends a follower never
        has quite everything, but it soon has what the leader had at the previous report."""
        if follower.acknowledged_end >= self._end:
            follower.caught_up_ms = now_ms
        elif follower.acknowledged_end >= follower.leader_end_when_heard != UNKNOWN:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.heard_ms)
        if follower.acknowledged_end >= follower.leader_end_when_heard:
            follower.heard_ms = now_ms
            follower.leader_end_when_heard = self._end

    def _in_sync_epoch(self, member: int, registered: Mapping[int, int], now_ms: float) -> int | None:
        follower = self._followers.get(member)
        if follower is None:
            return None
        if self.isr.get(member) == follower.broker_epoch:
            # Nothing was appended since the follower caught up: it lacks nothing, however long ago that was.
            is_current = follower.acknowledged_end >= self._end or now_ms - follower.caught_up_ms <= self._lag_max_ms
            return follower.broker_epoch if is_current else None
        joins = (
            registered.get(member) == follower.broker_epoch
            and follower.acknowledged_end >= self.high_watermark
            and follower.acknowledged_end >= self._epoch_start
            and now_ms - follower.caught_up_ms <= self._lag_max_ms
        )
        return follower.broker_epoch if joins else None

    def _advance(self) -> bool:
        least = self._acknowledged_end
        if least <= self.high_watermark:
            return False
        if not self.has_enough_in_sync or self._has_eligible:
            _HELD()
            return False
        for members in (self.isr, self.proposed or ()):
            for member in members:
                if member != self._me:
                    follower = self._followers.get(member)
                    least = min(least, follower.acknowledged_end if follower is not None else UNKNOWN)
        if least <= self.high_watermark:
            return False
        self.high_watermark = least
        return True
