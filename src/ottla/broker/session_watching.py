"""What has changed in a follower's partitions since its fetch session last looked at them.

A follower may share thousands of partitions with a leader, of which one has a new record. So the partitions tell the
session, from one request to the next, and an answer looks only at those that did. Now and then all of them are looked
at: that is also how the leader hears that a follower is still there for the quiet ones.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from ottla.broker.waits import ReplicaWatch
from ottla.wire.produce import TopicKey

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

ALL_EVERY_MS = 500.0

PartitionKey = tuple[TopicKey, int]


class Waiting(Protocol):
    """A fetch that has found nothing yet."""

    def look_again(self) -> None: ...

    def hurry(self) -> None: ...


class SessionWatching:
    __slots__ = ("_watched", "all_at_ms", "changed", "waiting")

    def __init__(self) -> None:
        self.changed: dict[PartitionKey, None] = {}
        """To be looked at for the next answer, in the order in which they changed."""
        self.waiting: Waiting | None = None
        self._watched: dict[PartitionKey, Partition] = {}
        self.all_at_ms = 0.0
        """When all of them are looked at again."""

    def is_all_due(self, now_ms: float) -> bool:
        if now_ms < self.all_at_ms:
            return False
        self.all_at_ms = now_ms + ALL_EVERY_MS
        return True

    def watch(self, key: PartitionKey, partition: Partition) -> None:
        """From now on the partition tells. The same name may become another partition: it is looked at again then."""
        known = self._watched.get(key)
        if known is partition:
            return
        if known is not None:
            known.unwatch(id(self))
        self._watched[key] = partition
        watch = ReplicaWatch(id(self), self._look_again, partial(self._mark, key), partial(self._on_watermark, key))
        partition.watch_as_follower(watch)

    def watched(self, key: PartitionKey) -> Partition | None:
        return self._watched.get(key)

    def forget(self, key: PartitionKey) -> None:
        self.changed.pop(key, None)
        partition = self._watched.pop(key, None)
        if partition is not None:
            partition.unwatch(id(self))

    def end(self) -> None:
        for key in list(self._watched):
            self.forget(key)
        self.changed.clear()
        self.all_at_ms = 0.0

    def _mark(self, key: PartitionKey) -> bool:
        """Whether somebody waits for it."""
        self.changed[key] = None
        return self.waiting is not None

    def _on_watermark(self, key: PartitionKey) -> None:
        self.changed[key] = None
        if self.waiting is not None:
            self.waiting.hurry()

    def _look_again(self) -> None:
        if self.waiting is not None:
            self.waiting.look_again()
