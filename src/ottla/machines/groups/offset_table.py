"""The committed offsets of all groups in a partition of `__consumer_offsets`, and those of open transactions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.machines.groups.records import CommittedOffset, OffsetRecord

TopicOffsets = dict[str, dict[int, CommittedOffset]]


class OffsetKey(NamedTuple):
    """Identifies one committed offset."""

    group: str
    topic: str
    partition: int


class Pending(NamedTuple):
    """An offset of an open transaction. A later commit outside the transaction takes precedence, whatever
    its outcome."""

    value: CommittedOffset
    is_superseded: bool = False


@dataclass(slots=True)
class OffsetTable:
    """Committed and pending offsets by group, topic and partition."""

    committed: dict[str, TopicOffsets] = field(default_factory=dict)
    pending: dict[int, dict[OffsetKey, Pending]] = field(default_factory=dict)
    """By producer id: the offsets that its open transaction will commit."""

    def has_group(self, group: str) -> bool:
        """Returns whether the group has committed offsets or pending ones of open transactions."""
        return group in self.committed or self.has_pending(group)

    def groups(self) -> set[str]:
        """Returns all groups with committed or pending offsets."""
        return {*self.committed, *(key.group for offsets in self.pending.values() for key in offsets)}

    def get(self, key: OffsetKey) -> CommittedOffset | None:
        """Returns the committed offset, or None. Pending ones do not count."""
        return self.committed.get(key.group, {}).get(key.topic, {}).get(key.partition)

    def of(self, group: str) -> TopicOffsets:
        """Returns the committed offsets of a group by topic and partition; empty if there are none."""
        return self.committed.get(group, {})

    def keys(self, group: str) -> Iterator[OffsetKey]:
        """Yields the keys of a group, including those of offsets that are only pending."""
        for topic, partitions in self.of(group).items():
            for partition in partitions:
                yield OffsetKey(group, topic, partition)
        for offsets in self.pending.values():
            yield from (key for key in offsets if key.group == group and self.get(key) is None)

    def is_pending(self, key: OffsetKey) -> bool:
        """Returns whether an open transaction has an offset for this partition."""
        return any(key in offsets for offsets in self.pending.values())

    def has_pending(self, group: str) -> bool:
        """Returns whether an open transaction has offsets of this group."""
        return any(key.group == group for offsets in self.pending.values() for key in offsets)

    # -- changes: only by records and transaction markers ---------------------------------------------------------

    def apply(self, record: OffsetRecord, producer_id: int | None = None) -> None:
        """Applies a commit or a deletion. With `producer_id`, the offset stays pending until its transaction ends."""
        key = OffsetKey(record.group, record.topic, record.partition)
        if record.value is None:
            self._remove(key)
        elif producer_id is None:
            self._put(key, record.value)
            for offsets in self.pending.values():
                if key in offsets:
                    offsets[key] = offsets[key]._replace(is_superseded=True)
        else:
            self.pending.setdefault(producer_id, {})[key] = Pending(record.value)

    def complete(self, producer_id: int, *, is_committed: bool) -> None:
        """Applies the marker of a transaction."""
        for key, pending in self.pending.pop(producer_id, {}).items():
            if is_committed and not pending.is_superseded:
                self._put(key, pending.value)

    def _put(self, key: OffsetKey, value: CommittedOffset) -> None:
        self.committed.setdefault(key.group, {}).setdefault(key.topic, {})[key.partition] = value

    def _remove(self, key: OffsetKey) -> None:
        topics = self.committed.get(key.group, {})
        partitions = topics.get(key.topic, {})
        partitions.pop(key.partition, None)
        if not partitions:
            topics.pop(key.topic, None)
        if not topics:
            self.committed.pop(key.group, None)
        for producer_id, offsets in list(self.pending.items()):
            offsets.pop(key, None)
            if not offsets:
                del self.pending[producer_id]
