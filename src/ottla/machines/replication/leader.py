"""What a leader knows of its followers, and what follows from it: the high watermark and the next ISR.

A follower has two ends. Its `end` is the offset that it fetches from: it has everything below, in whatever way. Its
`acknowledged_end` is what counts (SAFETY 13): appended for `memory`, written for `cache`, synced for `disk`. A follower
of a `disk` topic fetches ahead of its syncs and reports them by themselves (SAFETY 14), so the two differ.

The watermark is the least acknowledged end of everybody who may be in the ISR: the stored one and the one that is on
its way to be stored. So a shrink counts when it is confirmed, an expansion from when it is sent, and an unknown outcome
keeps the larger set (SAFETY 15). It stands still while the ISR is smaller than min.insync.replicas, and while there are
eligible replicas outside of it, which may be elected (SAFETY 4).

Pure: time comes in as a number, the ISR's fate as calls. One leader epoch has one of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

UNKNOWN = -1
NEVER = float("-inf")

Isr = Mapping[int, int]
"""Broker id to broker epoch: a member is an incarnation (SAFETY 2)."""


@dataclass(slots=True)
class Follower:
    broker_epoch: int
    caught_up_ms: float
    """When it last had, acknowledged, all that the leader had."""
    start: int = UNKNOWN
    """Where its log begins."""
    end: int = UNKNOWN
    acknowledged_end: int = UNKNOWN
    heard_ms: float = 0.0
    leader_end_when_heard: int = UNKNOWN


class LeaderReplication:
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
        """On its way to be stored, or stored for all we know."""
        self._has_eligible = has_eligible
        self._min_in_sync = min_in_sync
        self.high_watermark = high_watermark
        self._end = end
        self._acknowledged_end = acknowledged_end
        self._epoch_start = end
        """What was here before this epoch: nobody joins the ISR without it."""
        self._lag_max_ms = lag_max_ms
        self._acknowledges_by_fetch = acknowledges_by_fetch
        self._followers: dict[int, Follower] = {}
        for member, broker_epoch in self.isr.items():
            if member != broker_id:
                # Nothing is known yet; it has as long to show up as one that was in sync a moment ago.
                self._followers[member] = Follower(broker_epoch, now_ms)
        self._advance()

    # -- what it says -----------------------------------------------------------------------------------------

    @property
    def epoch_start(self) -> int:
        return self._epoch_start

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether acks=all may be taken. More than there are replicas cannot be asked for."""
        return len(self.isr) >= min(self._min_in_sync, len(self._others) + 1)

    def follower(self, broker_id: int) -> Follower | None:
        return self._followers.get(broker_id)

    def in_sync_with(self, offset: int) -> list[tuple[int, int]]:
        """(end, broker id) of the followers in sync that have the record at this offset, or are about to."""
        found = []
        for member in self.isr:
            follower = self._followers.get(member)
            if follower is not None and follower.start <= offset <= follower.end:
                found.append((follower.end, member))
        return found

    def least_end_needed(self) -> int:
        """Everybody in sync has what lies below."""
        ends = [follower.end for member in self.isr if (follower := self._followers.get(member)) is not None]
        return min([self._end, *ends])

    # -- what happens: each returns whether the watermark moved -----------------------------------------------

    def on_own_progress(self, end: int, acknowledged_end: int) -> bool:
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
        """A follower of this leader epoch asks from this offset on, and its history does not diverge. Its log begins at
        `start`. Its synced end comes along if it is known; what was reported since may be further on."""
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
        """A follower reports its synced end. It counts no further than what it has asked beyond: the report is of the
        same history only up to there (SAFETY 14)."""
        follower = self._followers.get(broker_id)
        if follower is None or follower.broker_epoch != broker_epoch or follower.end == UNKNOWN:
            return False
        follower.acknowledged_end = max(follower.acknowledged_end, min(end, follower.end))
        self._note_lag(follower, now_ms)
        return self._advance()

    def on_min_in_sync(self, min_in_sync: int) -> bool:
        self._min_in_sync = min_in_sync
        return self._advance()

    def on_lag_max(self, lag_max_ms: float) -> None:
        self._lag_max_ms = lag_max_ms

    def on_replicas(self, replicas: Iterable[int]) -> None:
        """A reassignment: who is no replica any more is forgotten."""
        self._others = [replica for replica in replicas if replica != self._me]
        self._followers = {member: f for member, f in self._followers.items() if member in self._others}

    # -- the ISR ----------------------------------------------------------------------------------------------

    def next_isr(self, registered: Mapping[int, int], now_ms: float) -> dict[int, int] | None:
        """The ISR that should be stored now, or None. `registered` has the broker epoch of every live broker."""
        if self.proposed is not None:
            return None
        wanted = {self._me: registered.get(self._me, self.isr.get(self._me, UNKNOWN))}
        for member in self._others:
            broker_epoch = self._in_sync_epoch(member, registered, now_ms)
            if broker_epoch is not None:
                wanted[member] = broker_epoch
        return wanted if wanted != self.isr else None

    def on_isr_sent(self, isr: Isr) -> None:
        self.proposed = dict(isr)

    def on_isr_stored(self, isr: Isr, *, has_eligible: bool = False) -> bool:
        """What the store has, by our own confirmed write or by the controller's."""
        self.isr = dict(isr)
        self._has_eligible = has_eligible
        self.proposed = None
        return self._advance()

    def on_isr_refused(self) -> bool:
        """The write met a condition that did not hold: it will never be applied, and what stands is on its way."""
        self.proposed = None
        return self._advance()

    # -- inside -----------------------------------------------------------------------------------------------

    def _follower_for(self, broker_id: int, broker_epoch: int, now_ms: float) -> Follower | None:
        if broker_id not in self._others:
            return None
        follower = self._followers.get(broker_id)
        if follower is None or broker_epoch > follower.broker_epoch:
            # A new incarnation begins with nothing: what the old one had says nothing of it.
            follower = self._followers[broker_id] = Follower(broker_epoch, NEVER)
        return follower if follower.broker_epoch == broker_epoch else None

    def _note_lag(self, follower: Follower, now_ms: float) -> None:
        """Caught up now, or as of the last word from it: a follower that fetches in a stream of appends never has
        quite everything, but soon has what there was."""
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
            # Nothing was appended since it was caught up: it lacks nothing, however long ago that was.
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
        if not self.has_enough_in_sync or self._has_eligible:
            return False
        least = self._acknowledged_end
        for members in (self.isr, self.proposed or ()):
            for member in members:
                if member != self._me:
                    follower = self._followers.get(member)
                    least = min(least, follower.acknowledged_end if follower is not None else UNKNOWN)
        if least <= self.high_watermark:
            return False
        self.high_watermark = least
        return True
