"""A broker's copy of the cluster state: the entries of the coordination store, decoded and indexed.

The image is loaded from a snapshot and maintained by the batches of a watch, so it is always a state that the store
really had, perhaps slightly outdated. Partitions whose topic has no entry, and partitions beyond the topic's partition
count, are not visible: they are being created, or are left over from a deletion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ottla.coordination.port import Change, Condition, Entry, HasVersion, IsAbsent, Revision
from ottla.machines.controller import keys
from ottla.machines.controller.encoding import UnreadableEntry
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.image_tables import ImageTables
from ottla.machines.controller.state import (
    ControllerEntry,
    DeletedTopic,
    FailedLogs,
    Incarnation,
    PartitionKey,
    PartitionState,
    Registration,
    TopicCreation,
    TopicState,
    Versioned,
)
from ottla.protocol.model.acl_bindings import AclBinding
from ottla.protocol.model.acl_entries import PREFIX as ACLS
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.ids import TopicId
from ottla.protocol.model.topic_names import metric_name


class ClusterImage:
    """The decoded state of the cluster, with the lookups that brokers and the controller need.

    It is large because it is a read model: each method is one query, and none but `apply` changes anything.
    """

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables = ImageTables()

    @classmethod
    def load(cls, entries: Iterable[Entry]) -> ClusterImage:
        """Builds an image from a snapshot of the store."""
        image = cls()
        image.apply(Change(entry.key, entry) for entry in entries)
        return image

    def apply(self, changes: Iterable[Change]) -> ImageChanges:
        """Applies one batch of a watch and returns what it touched."""
        return self._tables.apply(changes)

    # -- brokers --------------------------------------------------------------------------------------------------

    def registration(self, broker_id: int) -> Registration | None:
        """Returns the registration of a live broker, or None."""
        found = self._tables.registrations.get(broker_id)
        return None if found is None else found.value

    def registration_entry(self, broker_id: int) -> Versioned[Registration] | None:
        """Returns the registration with the version of its entry, for conditions; None if the broker is not live."""
        return self._tables.registrations.get(broker_id)

    def registrations(self) -> Iterator[Registration]:
        """Returns the registrations of all live brokers, in no particular order."""
        return (found.value for found in self._tables.registrations.values())

    def incarnation(self, broker_id: int) -> Versioned[Incarnation] | None:
        """Returns the last incarnation of a broker, live or not; None if it never registered."""
        return self._tables.incarnations.get(broker_id)

    def failures(self, broker_id: int) -> Versioned[FailedLogs] | None:
        """Returns the last failure report of a broker, which may be that of an earlier incarnation."""
        return self._tables.failures.get(broker_id)

    def has_failures(self, broker_id: int) -> bool:
        """Returns whether the broker has a failure report, even one that cannot be read."""
        return broker_id in self._tables.failures or self._has_unreadable_failures(broker_id)

    def has_failed(self, broker_id: int, partition: PartitionKey, durability: Durability) -> bool:
        """Returns whether the live incarnation lost this log. Reports of earlier incarnations do not count."""
        found = self._tables.failures.get(broker_id)
        if found is None:
            return self._has_unreadable_failures(broker_id)
        registration = self.registration(broker_id)
        is_of_this_incarnation = registration is not None and found.value.broker_epoch == registration.epoch
        return is_of_this_incarnation and found.value.has(partition, durability)

    def _has_unreadable_failures(self, broker_id: int) -> bool:
        """Returns whether the failure report cannot be read; it may then concern any log."""
        unreadable = self._tables.unreadable
        return bool(unreadable) and keys.failures(broker_id) in unreadable

    @property
    def controller(self) -> Versioned[ControllerEntry] | None:
        """The controller's entry with its version, or None while there is no controller."""
        return self._tables.controller.get(keys.CONTROLLER)

    def configs(self, broker_id_or_default: str) -> Mapping[str, str]:
        """Returns the dynamic configuration of one broker, or of all brokers (`keys.DEFAULT`)."""
        found = self._tables.configs.get(broker_id_or_default)
        return {} if found is None else found.value

    def acls(self) -> Iterator[AclBinding]:
        """Returns all ACLs, in no particular order."""
        return (found.value for found in self._tables.acls.values())

    def acl(self, acl_id: str) -> AclBinding | None:
        """Returns the ACL with this id, or None."""
        found = self._tables.acls.get(acl_id)
        return None if found is None else found.value

    def knows_all_acls(self) -> bool:
        """Returns whether every ACL can be read. An ACL that cannot may be one that denies."""
        return not any(key.startswith(ACLS) for key in self._tables.unreadable)

    # -- topics ---------------------------------------------------------------------------------------------------

    def topic(self, topic_id: TopicId) -> TopicState | None:
        """Returns the topic with this id, or None."""
        found = self._tables.topics.get(topic_id)
        return None if found is None else found.value

    def topic_entry(self, topic_id: TopicId) -> Versioned[TopicState] | None:
        """Returns the topic with the version of its entry, for conditions; None if it does not exist."""
        return self._tables.topics.get(topic_id)

    def topic_named(self, name: str) -> TopicState | None:
        """Returns the topic with this name, or None; a topic that is still being created does not count."""
        found = self._tables.names.get(name)
        return None if found is None else self.topic(found.value)

    def topics(self) -> Iterator[TopicState]:
        """Returns all topics, in no particular order."""
        return (found.value for found in self._tables.topics.values())

    def names_like(self, name: str) -> Collection[str]:
        """Returns the existing topic names that differ from this one at most in '.' and '_'."""
        return self._tables.metric_names.get(metric_name(name), frozenset())

    def creating(self) -> Mapping[TopicId, Versioned[TopicCreation]]:
        """Returns the topics that are being created, by id."""
        return self._tables.creating

    def deleted(self) -> Mapping[TopicId, Versioned[DeletedTopic]]:
        """Returns the deleted topics of which some broker may still have logs."""
        return self._tables.deleted

    # -- partitions -----------------------------------------------------------------------------------------------

    def partition(self, key: PartitionKey) -> Versioned[PartitionState] | None:
        """Returns the partition with the version of its entry; None unless its topic is visible and includes it."""
        return self._tables.partitions.get(key) if self._is_visible(key) else None

    def partitions(self) -> Iterator[tuple[PartitionKey, Versioned[PartitionState]]]:
        """Returns all visible partitions."""
        return ((key, found) for key, found in self._tables.partitions if self._is_visible(key))

    def partitions_of(self, topic_id: TopicId) -> dict[int, Versioned[PartitionState]]:
        """Returns the visible partitions of a topic by index, in order."""
        topic = self.topic(topic_id)
        if topic is None:
            return {}
        stored = self._tables.partitions.of_topic(topic_id)
        return {index: stored[index] for index in range(topic.partition_count) if index in stored}

    def led_by(self, broker_id: int) -> Iterator[PartitionKey]:
        """Returns the visible partitions whose leader is this broker."""
        return filter(self._is_visible, self._tables.partitions.led_by(broker_id))

    def hosted_by(self, broker_id: int) -> Iterator[PartitionKey]:
        """Returns the visible partitions that have a replica on this broker."""
        return filter(self._is_visible, self._tables.partitions.hosted_by(broker_id))

    def leader_count(self, broker_id: int) -> int:
        """Returns the number of partitions that the broker leads, invisible ones included."""
        return len(self._tables.partitions.led_by(broker_id))

    def replica_count(self, broker_id: int) -> int:
        """Returns the number of the broker's replicas, those of invisible partitions included."""
        return len(self._tables.partitions.hosted_by(broker_id))

    def reassigning(self) -> Iterator[PartitionKey]:
        """Returns the visible partitions with a reassignment in progress."""
        return filter(self._is_visible, self._tables.partitions.reassigning)

    def hosts_of(self, topic_id: TopicId) -> frozenset[int]:
        """Returns all brokers that may have logs of a topic."""
        stored = self._tables.partitions.of_topic(topic_id).values()
        return frozenset(broker_id for found in stored for broker_id in found.value.replicas)

    def left_over(self) -> Iterator[tuple[PartitionKey, Versioned[PartitionState]]]:
        """Returns partitions without a topic that nobody is creating: they can never become visible."""
        tables = self._tables
        for topic_id in tables.overfull:
            # Unreadable entries are left alone, and so is everything that belongs to them.
            if not tables.unreadable.keys().isdisjoint((keys.topic(topic_id), keys.creating(topic_id))):
                continue
            if topic_id in tables.creating:
                continue
            for index, found in tables.partitions.of_topic(topic_id).items():
                key = PartitionKey(topic_id, index)
                if not self._is_visible(key):
                    yield key, found

    def is_obsolete(self, key: PartitionKey, broker_id: int) -> bool:
        """Returns whether a broker may remove its log: the topic is certainly gone, or its replicas are elsewhere.

        A partition may also be invisible because its entry cannot be read by this version (safety: topic-identity).
        """
        tables = self._tables
        if tables.version_of(keys.topic(key.topic_id)) is None:
            return tables.version_of(keys.creating(key.topic_id)) is None
        found = self.partition(key)
        return found is not None and broker_id not in found.value.replicas

    def _is_visible(self, key: PartitionKey) -> bool:
        topic = self._tables.topics.get(key.topic_id)
        return topic is not None and key.partition < topic.value.partition_count

    # -- conditions -----------------------------------------------------------------------------------------------

    def unreadable(self) -> Collection[UnreadableEntry]:
        """Returns the entries that this version cannot decode."""
        return self._tables.unreadable.values()

    def version_of(self, key: str) -> Revision | None:
        """Returns the version of the entry with this key, or None if there is none."""
        return self._tables.version_of(key)

    def unchanged(self, key: str) -> Condition:
        """Returns the condition that the key still has the version that this image shows."""
        version = self._tables.version_of(key)
        return IsAbsent(key) if version is None else HasVersion(key, version)

    def standing(self, broker_id: int) -> tuple[Condition, Condition]:
        """Returns the conditions that the broker is still registered as shown here and that no more of its logs have
        failed."""
        return self.unchanged(keys.broker(broker_id)), self.unchanged(keys.failures(broker_id))

    # -- tables, for comparison -----------------------------------------------------------------------------------

    def broker_tables(self) -> tuple[Mapping[int, Versioned[Any]], ...]:
        """Returns the tables that are keyed by broker id: registrations, incarnations, failures."""
        return self._tables.registrations, self._tables.incarnations, self._tables.failures

    def topic_table(self) -> Mapping[TopicId, Versioned[TopicState]]:
        """Returns the topics with the versions of their entries, by id."""
        return self._tables.topics

    def acls_table(self) -> Mapping[str, Versioned[AclBinding]]:
        """Returns the ACLs with the versions of their entries, by id."""
        return self._tables.acls

    def configs_table(self) -> Mapping[str, Versioned[Mapping[str, str]]]:
        """Returns the dynamic settings with the versions of their entries, by broker id or `default`."""
        return self._tables.configs
