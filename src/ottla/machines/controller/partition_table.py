"""The partitions of a cluster, indexed by topic, by leader and by replica."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ottla.machines.controller.state import PartitionKey, PartitionState, Versioned
from ottla.protocol.model.ids import TopicId

_NO_PARTITIONS: Mapping[int, Versioned[PartitionState]] = {}
_NO_KEYS: frozenset[PartitionKey] = frozenset()


class PartitionTable:
    """All partitions in the store, visible or not; the image knows the topics."""

    __slots__ = ("_by_topic", "_hosted", "_led", "_reassigning")

    def __init__(self) -> None:
        self._by_topic: dict[TopicId, dict[int, Versioned[PartitionState]]] = {}
        self._led: dict[int, set[PartitionKey]] = {}
        self._hosted: dict[int, set[PartitionKey]] = {}
        self._reassigning: set[PartitionKey] = set()

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    def __iter__(self) -> Iterator[tuple[PartitionKey, Versioned[PartitionState]]]:
        for topic_id, partitions in self._by_topic.items():
            for index, found in partitions.items():
                yield PartitionKey(topic_id, index), found

    def get(self, key: PartitionKey) -> Versioned[PartitionState] | None:
        """Returns a partition with the version of its entry, or None."""
        return self._by_topic.get(key.topic_id, _NO_PARTITIONS).get(key.partition)

    def of_topic(self, topic_id: TopicId) -> Mapping[int, Versioned[PartitionState]]:
        """Returns the stored partitions of a topic by index; empty if there are none."""
        return self._by_topic.get(topic_id, _NO_PARTITIONS)

    def led_by(self, broker_id: int) -> Collection[PartitionKey]:
        """Returns the partitions whose leader is this broker."""
        return self._led.get(broker_id, _NO_KEYS)

    def hosted_by(self, broker_id: int) -> Collection[PartitionKey]:
        """Returns the partitions that have a replica on this broker."""
        return self._hosted.get(broker_id, _NO_KEYS)

    @property
    def reassigning(self) -> Collection[PartitionKey]:
        """The partitions with a reassignment in progress."""
        return self._reassigning

    def put(self, key: PartitionKey, new: Versioned[PartitionState]) -> None:
        """Adds or replaces a partition and updates the indexes."""
        partitions = self._by_topic.setdefault(key.topic_id, {})
        old = partitions.get(key.partition)
        partitions[key.partition] = new
        self._index(key, None if old is None else old.value, new.value)

    def remove(self, key: PartitionKey) -> None:
        """Removes a partition and updates the indexes. Does nothing if it is not there."""
        partitions = self._by_topic.get(key.topic_id, {})
        old = partitions.pop(key.partition, None)
        if old is None:
            return
        if not partitions:
            del self._by_topic[key.topic_id]
        self._index(key, old.value, None)

    def _index(self, key: PartitionKey, old: PartitionState | None, new: PartitionState | None) -> None:
        """Updates the indexes. Most changes affect only the ISR and touch no index."""
        old_leader = () if old is None else (old.leader,)
        new_leader = () if new is None else (new.leader,)
        if old_leader != new_leader:
            self._move(self._led, key, old_leader, new_leader)
        old_replicas = () if old is None else old.replicas
        new_replicas = () if new is None else new.replicas
        if old_replicas != new_replicas:
            self._move(self._hosted, key, old_replicas, new_replicas)
        if new is not None and new.is_reassigning:
            self._reassigning.add(key)
        else:
            self._reassigning.discard(key)

    @staticmethod
    def _move(
        index: dict[int, set[PartitionKey]], key: PartitionKey, old: tuple[int, ...], new: tuple[int, ...]
    ) -> None:
        for broker_id in old:
            keys = index[broker_id]
            keys.discard(key)
            if not keys and broker_id not in new:
                del index[broker_id]
        for broker_id in new:
            index.setdefault(broker_id, set()).add(key)
