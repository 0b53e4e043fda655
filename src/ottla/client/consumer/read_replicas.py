"""Chooses where a consumer reads each partition: from the leader, or from a follower that it named (KIP-392).

The leader names a follower because the consumer sends its rack. The follower is used until it returns an error, does
not reply, or its lease expires, so that the leader can name another one. A follower that did not reply is avoided for a
while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.client.consumer.types import TopicPartition
from ottla.client.metadata import Metadata

HOLD_OFF_S = 10.0
"""How long a broker may take to notice that a follower is gone."""


class ReadReplicas:
    """The replica that each partition is read from."""

    def __init__(self, metadata: Metadata, rack: str, lease_s: float, now_s: Callable[[], float]) -> None:
        self._metadata = metadata
        self._rack = rack
        self._lease_s = lease_s
        self._now_s = now_s
        self._chosen: dict[TopicPartition, tuple[int, float]] = {}
        """A follower, and the end of its lease."""
        self._held_off_until_s: dict[TopicPartition, float] = {}

    def broker_for(self, at: TopicPartition) -> int | None:
        """Returns the broker to read from, or None if it is unknown."""
        follower = self._follower_for(at)
        return follower if follower is not None else self._metadata.leader(*at)

    def is_follower(self, at: TopicPartition, broker_id: int) -> bool:
        """Returns whether the partition is read from this broker as a follower."""
        return self._follower_for(at) == broker_id

    def expire(self) -> bool:
        """Drops expired or unknown followers. Returns True if the leaders have to be asked again."""
        now_s, nodes = self._now_s(), self._metadata.view.nodes
        over = [at for at, (broker_id, until_s) in self._chosen.items() if now_s >= until_s or broker_id not in nodes]
        for at in over:
            del self._chosen[at]
        return bool(over)

    def _follower_for(self, at: TopicPartition) -> int | None:
        chosen = self._chosen.get(at)
        return None if chosen is None else chosen[0]

    def rack_for(self, partitions: Iterable[TopicPartition]) -> str:
        """Returns the rack to send for these partitions. Without a rack, the leader serves the request itself."""
        if not self._rack or not self._held_off_until_s:
            return self._rack
        now_s = self._now_s()
        held_off = any(self._held_off_until_s.get(at, 0.0) > now_s for at in partitions)
        return "" if held_off else self._rack

    def use(self, at: TopicPartition, broker_id: int) -> None:
        """Uses the follower that the leader named, unless the metadata does not know it yet."""
        if broker_id in self._metadata.view.nodes:
            self._chosen[at] = broker_id, self._now_s() + self._lease_s
            return
        self._hold_off(at)
        self._metadata.mark_stale()

    def leave(self, at: TopicPartition) -> None:
        """Returns to the leader, because the follower returned an error and the leader knows more."""
        if self._chosen.pop(at, None) is not None:
            self._metadata.mark_stale()
            self._hold_off(at)

    def leave_broker(self, broker_id: int) -> None:
        """Returns to the leaders, because this broker did not reply."""
        for at in [at for at, (chosen, _) in self._chosen.items() if chosen == broker_id]:
            self.leave(at)

    def _hold_off(self, at: TopicPartition) -> None:
        self._held_off_until_s[at] = self._now_s() + HOLD_OFF_S
