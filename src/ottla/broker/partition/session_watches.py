"""Tracks which of a follower's partitions have changed since its fetch session last looked at them.

A follower may share thousands of partitions with a leader, of which one has a new record. So the partitions notify the
session between requests, and a reply looks only at those that did. From time to time it looks at all of them, which is
also how the leader learns that the follower is still alive for the idle ones.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from ottla.broker.partition.waits import ReplicaWatch
from ottla.protocol.wire.produce import TopicKey

if TYPE_CHECKING:
    from ottla.broker.partition.partition import Partition

ALL_EVERY_MS = 500.0

PartitionKey = tuple[TopicKey, int]


class ParkedFetch(Protocol):
    """A fetch that has found nothing yet."""

    def look_again(self) -> None:
        """Looks for data again."""
        ...

    def hurry(self) -> None:
        """Replies soon, to deliver a new high watermark."""
        ...


class SessionWatches:
    """The watches of one follower's session."""

    __slots__ = ("_watched", "all_at_ms", "changed", "waiting")

    def __init__(self) -> None:
        self.changed: dict[PartitionKey, None] = {}
        """Partitions to look at for the next reply, in the order in which they changed."""
        self.waiting: ParkedFetch | None = None
        self._watched: dict[PartitionKey, Partition] = {}
        self.all_at_ms = 0.0
        """When all partitions are looked at again."""

    def is_all_due(self, now_ms: float) -> bool:
        """Whether it is time to look at all partitions; if so, schedules the next time."""
        if now_ms < self.all_at_ms:
            return False
        self.all_at_ms = now_ms + ALL_EVERY_MS
        return True

    def watch(self, key: PartitionKey, partition: Partition) -> None:
        """Watches a partition. A key may come to mean another partition (a topic was recreated): that one is then
        watched instead."""
        known = self._watched.get(key)
        if known is partition:
            return
        if known is not None:
            known.watches.remove(id(self))
        self._watched[key] = partition
        watch = ReplicaWatch(id(self), self._look_again, partial(self._mark, key), partial(self._on_watermark, key))
        partition.watches.add_replica(watch)

    def watched(self, key: PartitionKey) -> Partition | None:
        """Returns the partition that is watched under this key, or None."""
        return self._watched.get(key)

    def forget(self, key: PartitionKey) -> None:
        """Stops watching a partition."""
        self.changed.pop(key, None)
        partition = self._watched.pop(key, None)
        if partition is not None:
            partition.watches.remove(id(self))

    def end(self) -> None:
        """Stops watching all partitions."""
        for key in list(self._watched):
            self.forget(key)
        self.changed.clear()
        self.all_at_ms = 0.0

    def _mark(self, key: PartitionKey) -> bool:
        """Marks a partition as changed. Returns whether a request waits."""
        self.changed[key] = None
        return self.waiting is not None

    def _on_watermark(self, key: PartitionKey) -> None:
        self.changed[key] = None
        if self.waiting is not None:
            self.waiting.hurry()

    def _look_again(self) -> None:
        if self.waiting is not None:
            self.waiting.look_again()
