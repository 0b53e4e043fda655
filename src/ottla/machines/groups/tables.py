"""The state that survives a failover, as defined by the records. Only `apply` changes it, running or loading."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from ottla.machines.groups.offset_table import OffsetTable
from ottla.machines.groups.records import (
    NOTHING,
    Assigned,
    Assignment,
    ClassicGeneration,
    ClassicRecord,
    ConsumerMember,
    ConsumerRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    MemberState,
    OffsetRecord,
    Record,
    RegexRecord,
    ResolvedRegex,
    SubscribedTopicsRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicFacts,
)

T = TypeVar("T")

NEW_MEMBER = CurrentAssignment(0, 0, MemberState.STABLE)


@dataclass(slots=True)
class ConsumerGroup:
    """A group of the consumer protocol (KIP-848)."""

    epoch: int = 0
    """Increases whenever the partitions to assign, or the members, change."""
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    """The subscribed topics as of this epoch."""
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target_epoch: int = 0
    targets: dict[str, Assignment] = field(default_factory=dict)
    current: dict[str, CurrentAssignment] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    owners: dict[Assigned, str] = field(default_factory=dict)
    """The owner of each partition, even while it is being revoked. Derived from `current`."""
    instances: dict[str, str] = field(default_factory=dict)
    """Member ids of static members by instance id. Derived from `members`."""

    def current_of(self, member_id: str) -> CurrentAssignment:
        """Returns the member's current assignment; that of a new member if it has none."""
        return self.current.get(member_id, NEW_MEMBER)

    def apply(self, record: ConsumerRecord) -> None:
        """Applies one record of this group."""
        match record:
            case GroupEpochRecord(value=value):
                self.epoch = value or 0
            case SubscribedTopicsRecord(value=value):
                self.topics = dict(value or ())
            case MemberRecord():
                self._apply_member(record)
            case TargetEpochRecord(value=value):
                self.target_epoch = value or 0
            case TargetRecord(member_id=member_id, value=value):
                _put(self.targets, member_id, value)
            case CurrentRecord():
                self._apply_current(record)
            case RegexRecord(regex=regex, value=value):
                _put(self.regexes, regex, value)

    def _apply_member(self, record: MemberRecord) -> None:
        old = self.members.get(record.member_id)
        if old is not None and old.instance_id is not None and self.instances.get(old.instance_id) == record.member_id:
            del self.instances[old.instance_id]
        _put(self.members, record.member_id, record.value)
        if record.value is not None and record.value.instance_id is not None:
            self.instances[record.value.instance_id] = record.member_id

    def _apply_current(self, record: CurrentRecord) -> None:
        old = self.current.get(record.member_id)
        for each in (old.assigned | old.revoking) if old is not None else NOTHING:
            if self.owners.get(each) == record.member_id:
                del self.owners[each]
        _put(self.current, record.member_id, record.value)
        if record.value is not None:
            for each in record.value.assigned | record.value.revoking:
                self.owners[each] = record.member_id


@dataclass(slots=True)
class Tables:
    """All groups and offsets of one partition."""

    offsets: OffsetTable = field(default_factory=OffsetTable)
    classic: dict[str, ClassicGeneration] = field(default_factory=dict)
    consumer: dict[str, ConsumerGroup] = field(default_factory=dict)

    def apply(self, record: Record, producer_id: int | None = None) -> None:
        """Applies one record. With `producer_id`, an offset stays pending until that producer's transaction ends."""
        match record:
            case OffsetRecord():
                self.offsets.apply(record, producer_id)
            case ClassicRecord(group=group, value=value):
                _put(self.classic, group, value)
            case GroupEpochRecord(group=group, value=None):
                self.consumer.pop(group, None)
            case _:
                self._apply_to_consumer_group(record)

    def _apply_to_consumer_group(self, record: ConsumerRecord) -> None:
        group = self.consumer.get(record.group)
        if group is None:
            if record.value is None:
                return  # compaction has removed what this tombstone deleted
            group = self.consumer[record.group] = ConsumerGroup()
        group.apply(record)


def _put(table: dict[str, T], key: str, value: T | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
