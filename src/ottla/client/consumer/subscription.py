"""The partitions that a consumer reads: assigned one by one, or all of the subscribed topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ottla.client.consumer.fetcher import FetchSettings
from ottla.client.consumer.partition_reader import EARLIEST, PartitionReader
from ottla.client.consumer.types import TopicPartition
from ottla.client.errors import ClientError, refused
from ottla.client.metadata import Metadata

UNKNOWN_TOPIC_GRACE_S = 2.0
"""Some brokers do not know a new topic for a moment, so an unknown topic becomes an error only after this time."""


class Subscription:
    """Owns `readers`, which the fetcher fills and the consumer empties."""

    def __init__(self, metadata: Metadata, settings: FetchSettings, *, has_group: bool = False) -> None:
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self.failure: ClientError | None = None
        self._metadata = metadata
        self._reset_to = settings.reset_to
        self._fetch_bytes_max = settings.partition_bytes_max
        self._has_group = has_group
        self._subscribed: set[str] = set()
        self._discovered: set[str] = set()
        self._unknown_since_s: dict[str, float] = {}

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions."""
        wanted = dict.fromkeys(partitions)
        self._subscribed.clear()
        self._discovered.clear()
        self._keep_only(set(wanted))
        self._metadata.want({at.topic for at in wanted})
        for at in wanted:
            self._add(at, self._reset_to)

    def subscribe(self, topics: Iterable[str]) -> None:
        """Reads all partitions of these topics."""
        self._subscribed = set(topics)
        self._discovered &= self._subscribed
        self._keep_only({at for at in self.readers if at.topic in self._subscribed})
        self._metadata.want(self._subscribed)
        self.discover()

    def subscribe_in_group(self, topics: Iterable[str]) -> None:
        """Subscribes in a group, which chooses the partitions with `take` and `give_up`."""
        self._subscribed = set(topics)
        self._metadata.want(self._subscribed)

    def take(self, partitions: Iterable[TopicPartition]) -> None:
        """Adds partitions that the group assigned."""
        for at in sorted(partitions):
            self._add(at, None)

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Removes partitions that the group revoked."""
        self._drop(partitions)

    def discover(self) -> None:
        """Adds partitions of subscribed topics that are not read yet."""
        if self._has_group:
            return
        for topic in sorted(self._subscribed):
            view = self._metadata.cached(topic)
            if view is None:
                continue
            # A partition that appears in a topic that is already read is new, so none of its records may be skipped.
            reset_to = EARLIEST if topic in self._discovered else self._reset_to
            for index in view.partitions:
                self._add(TopicPartition(topic, index), reset_to)
            self._discovered.add(topic)

    def note_unknown_topics(self, now_s: float, report: Callable[[], None]) -> None:
        """Checks for topics that stay unknown and reports them as a failure. Called after each metadata refresh."""
        for topic in sorted(self._subscribed | {at.topic for at in self.readers}):
            error = self._metadata.topic_error(topic)
            if error is None:
                self._unknown_since_s.pop(topic, None)
                continue
            since_s = self._unknown_since_s.setdefault(topic, now_s)
            if now_s - since_s >= UNKNOWN_TOPIC_GRACE_S or not error.retriable:
                self.failure = refused(error, f'topic "{topic}"')
                report()

    def take_failure(self) -> ClientError | None:
        """Returns the first unreported failure. The failed operation is retried afterwards."""
        failure, self.failure = self.failure, None
        for reader in self.readers.values():
            if failure is None and reader.failure is not None:
                failure, reader.failure = reader.failure, None
            if failure is None and reader.position is None and reader.lookup is None and not reader.wants_committed:
                failure = ClientError(f'{reader.at} has no position: with auto_offset_reset="none", seek first')
        return failure

    def rewind(self, first: Mapping[TopicPartition, int]) -> None:
        """Moves the positions of assigned partitions back to these offsets."""
        for at, offset in first.items():
            if (reader := self.readers.get(at)) is not None:
                reader.rewind(offset)

    def reader(self, partition: tuple[str, int]) -> PartitionReader:
        """Returns the reader of a partition. Raises ClientError if it is not assigned."""
        reader = self.readers.get(TopicPartition(*partition))
        if reader is None:
            raise ClientError(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return reader

    def lift_ends(self) -> bool:
        """Removes all limits of `Consumer.fetch_range`. Returns whether there were any."""
        limited = [each for each in self.readers.values() if each.fetch_end is not None]
        for reader in limited:
            reader.fetch_end = None
        return bool(limited)

    def rotate(self) -> None:
        """Moves the first partition to the end, so that partitions take turns."""
        if len(self.readers) > 1:
            at = next(iter(self.readers))
            self.readers[at] = self.readers.pop(at)

    def _keep_only(self, kept: set[TopicPartition]) -> None:
        self._drop([at for at in self.readers if at not in kept])
        self._metadata.forget(self._metadata.wanted - {at.topic for at in kept} - self._subscribed)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for at in partitions:
            reader = self.readers.pop(at, None)
            if reader is not None:
                reader.seek(0)  # invalidates a fetch in flight for it

    def _add(self, at: TopicPartition, reset_to: int | None) -> None:
        if at in self.readers:
            return
        reader = self.readers[at] = PartitionReader(at, None, reset_to, self._fetch_bytes_max)
        if self._has_group:
            reader.lookup = None
            reader.wants_committed = True
