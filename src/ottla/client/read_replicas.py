"""Where a consumer reads each partition: at its leader, or at a follower that the leader named (KIP-392).

A follower is named because the consumer says its rack. It is used until it refuses, is not heard of, or its time is
over, so that the leader can name another one; a follower that did not answer is left alone for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.client.fetched import TopicPartition
from ottla.client.metadata import Metadata

HOLD_OFF_S = 10.0
"""As long as a broker may take to notice that a follower has gone."""


class ReadReplicas:
    def __init__(self, metadata: Metadata, rack: str, lease_s: float, now_s: Callable[[], float]) -> None:
        self._metadata = metadata
        self._rack = rack
        self._lease_s = lease_s
        self._now_s = now_s
        self._chosen: dict[TopicPartition, tuple[int, float]] = {}
        """A follower, and until when."""
        self._held_off_until_s: dict[TopicPartition, float] = {}

    def broker_for(self, at: TopicPartition) -> int | None:
        """None if nobody is known."""
        follower = self._follower_for(at)
        return follower if follower is not None else self._metadata.leader(*at)

    def is_follower(self, at: TopicPartition, broker_id: int) -> bool:
        return self._follower_for(at) == broker_id

    def expire(self) -> bool:
        """Whether leaders are to be asked again, by whom the partitions of some followers are read from now on."""
        now_s, nodes = self._now_s(), self._metadata.view.nodes
        over = [at for at, (broker_id, until_s) in self._chosen.items() if now_s >= until_s or broker_id not in nodes]
        for at in over:
            del self._chosen[at]
        return bool(over)

    def _follower_for(self, at: TopicPartition) -> int | None:
        chosen = self._chosen.get(at)
        return None if chosen is None else chosen[0]

    def rack_for(self, partitions: Iterable[TopicPartition]) -> str:
        """What a request for these says. Without a rack, a leader serves whoever asks."""
        if not self._rack or not self._held_off_until_s:
            return self._rack
        now_s = self._now_s()
        held_off = any(self._held_off_until_s.get(at, 0.0) > now_s for at in partitions)
        return "" if held_off else self._rack

    def use(self, at: TopicPartition, broker_id: int) -> None:
        """The leader named it. A broker that the metadata do not have yet cannot be asked."""
        if broker_id in self._metadata.view.nodes:
            self._chosen[at] = broker_id, self._now_s() + self._lease_s
            return
        self._hold_off(at)
        self._metadata.mark_stale()

    def leave(self, at: TopicPartition) -> None:
        """The follower refused: its leader knows more."""
        if self._chosen.pop(at, None) is not None:
            self._metadata.mark_stale()
            self._hold_off(at)

    def leave_broker(self, broker_id: int) -> None:
        """It did not answer."""
        for at in [at for at, (chosen, _) in self._chosen.items() if chosen == broker_id]:
            self.leave(at)

    def _hold_off(self, at: TopicPartition) -> None:
        self._held_off_until_s[at] = self._now_s() + HOLD_OFF_S
