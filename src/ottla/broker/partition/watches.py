"""The fetches that watch one partition: those of consumers wait for data, those of followers also for a new high
watermark."""

from __future__ import annotations

from ottla.broker.partition.waits import FetchWatch, ReplicaWatch, Wakeups


class PartitionWatches:
    """The watches of one partition."""

    __slots__ = ("_replicas", "_wakeups", "fetches", "is_unannounced")

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self.fetches: dict[int, FetchWatch] = {}
        """Fetches of consumers."""
        self._replicas: dict[int, ReplicaWatch] = {}
        self.is_unannounced = False
        """There may be records that followers have not been notified of."""

    def add(self, watch: FetchWatch) -> None:
        """Adds a consumer's fetch. Followers are notified at once of the records that it waits for."""
        self.fetches[watch.key] = watch
        if self.is_unannounced:
            self.wake_replicas()

    def add_replica(self, watch: ReplicaWatch) -> None:
        """Adds a follower's session."""
        self._replicas[watch.key] = watch

    def remove(self, key: int) -> None:
        """Removes the watch with this key."""
        self.fetches.pop(key, None)
        self._replicas.pop(key, None)

    def wake_fetches(self) -> None:
        """Wakes the fetches of consumers."""
        for watch in self.fetches.values():
            self._wakeups.wake(watch.key, watch.look_again)

    def wake_replicas(self) -> None:
        """Notifies followers of new records."""
        self.is_unannounced = False
        for watch in self._replicas.values():
            if watch.changed():
                self._wakeups.wake(watch.key, watch.look_again)

    def on_produced(self) -> None:
        """Notifies followers of produced records: at once if a consumer waits for them, otherwise within a few
        milliseconds, so that acks=1 does not pay for two messages per record. An acks=all producer calls
        `wake_replicas` before the event loop continues."""
        if self.fetches:
            self.wake_replicas()
            return
        for watch in self._replicas.values():
            if watch.changed():
                self.is_unannounced = True
                self._wakeups.wake_later(watch.key, watch.look_again)

    def on_watermark(self) -> None:
        """Notifies followers of a new high watermark."""
        for watch in self._replicas.values():
            watch.watermark_moved()
