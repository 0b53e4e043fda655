"""The tables of an image, and how changes of the store are applied to them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from ottla.coordination.port import Change, Entry, Revision
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.encoding import UnreadableEntry
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.partition_table import PartitionTable
from ottla.machines.controller.state import (
    ControllerEntry,
    DeletedTopic,
    FailedLogs,
    Incarnation,
    PartitionKey,
    Registration,
    TopicCreation,
    TopicState,
    Versioned,
)
from ottla.protocol.model.acl_bindings import AclBinding
from ottla.protocol.model.ids import TopicId
from ottla.protocol.model.topic_names import metric_name

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ImageTables:
    """Decoded entries by kind, updated one change at a time."""

    def __init__(self) -> None:
        self.registrations: dict[int, Versioned[Registration]] = {}
        self.incarnations: dict[int, Versioned[Incarnation]] = {}
        self.failures: dict[int, Versioned[FailedLogs]] = {}
        self.controller: dict[str, Versioned[ControllerEntry]] = {}
        self.topics: dict[TopicId, Versioned[TopicState]] = {}
        self.names: dict[str, Versioned[TopicId]] = {}
        self.metric_names: dict[str, set[str]] = {}
        self.configs: dict[str, Versioned[Mapping[str, str]]] = {}
        self.acls: dict[str, Versioned[AclBinding]] = {}
        self.creating: dict[TopicId, Versioned[TopicCreation]] = {}
        self.deleted: dict[TopicId, Versioned[DeletedTopic]] = {}
        self.partitions = PartitionTable()
        self.overfull: set[TopicId] = set()
        """Topics that have more stored partitions than visible ones."""
        self.unreadable: dict[str, UnreadableEntry] = {}
        self._readers: dict[str, Callable[[str, str, Entry | None, ImageChanges], None]] = {
            "brokers": self._on_broker,
            "incarnations": self._on_incarnation,
            "failures": self._on_failures,
            "controller": self._on_controller,
            "topics": self._on_topic,
            "names": self._on_name,
            "partitions": self._on_partition,
            "configs": self._on_configs,
            "acls": self._on_acl,
            "creating": self._on_creating,
            "deleted": self._on_deleted,
        }

    def apply(self, changes: Iterable[Change]) -> ImageChanges:
        """Applies changes in order and returns what they touched. Keys with an unknown prefix are ignored."""
        touched = ImageChanges()
        for change in changes:
            prefix, _, rest = change.key.partition("/")
            reader = self._readers.get(prefix)
            if reader is not None:
                self.unreadable.pop(change.key, None)
                reader(change.key, rest, change.entry, touched)
        return touched

    def version_of(self, key: str) -> Revision | None:
        """Returns the version of an entry, readable or not; None if it does not exist."""
        problem = self.unreadable.get(key)
        if problem is not None:
            return problem.version
        found = self._find(key)
        return None if found is None else found.version

    def _find(self, key: str) -> Versioned[Any] | None:
        prefix, _, rest = key.partition("/")
        match prefix:
            case "brokers" | "incarnations" | "failures":
                of_brokers: Mapping[str, Mapping[int, Versioned[Any]]] = {
                    "brokers": self.registrations,
                    "incarnations": self.incarnations,
                    "failures": self.failures,
                }
                return of_brokers[prefix].get(int(rest))
            case "topics" | "creating" | "deleted":
                topic_id = keys.read_topic_id(rest)
                of_topics: Mapping[str, Mapping[TopicId, Versioned[Any]]] = {
                    "topics": self.topics,
                    "creating": self.creating,
                    "deleted": self.deleted,
                }
                return None if topic_id is None else of_topics[prefix].get(topic_id)
            case "partitions":
                partition = keys.read_partition(rest)
                return None if partition is None else self.partitions.get(partition)
            case "names":
                return self.names.get(rest)
            case "configs":
                return self.configs.get(rest)
            case "acls":
                return self.acls.get(rest)
            case "controller":
                return self.controller.get(key)
            case _:
                raise ValueError(f"the image has no table for the key {key!r}")

    # -- one method for each kind of entry ------------------------------------------------------------------------

    def _on_broker(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        broker_id = self._checked(key, keys.read_number(rest), entry, touched)
        if broker_id is not None:
            touched.brokers.add(broker_id)
            self._store(
                self.registrations,
                broker_id,
                entry,
                lambda found: encoding.decode_registration(found, broker_id),
                touched,
            )

    def _on_incarnation(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        broker_id = self._checked(key, keys.read_number(rest), entry, touched)
        if broker_id is not None:
            touched.brokers.add(broker_id)
            self._store(self.incarnations, broker_id, entry, encoding.decode_incarnation, touched)

    def _on_failures(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        broker_id = self._checked(key, keys.read_number(rest), entry, touched)
        if broker_id is not None:
            touched.brokers.add(broker_id)
            self._store(self.failures, broker_id, entry, encoding.decode_failures, touched)

    def _on_controller(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        touched.controller = True
        self._store(self.controller, key, entry, encoding.decode_controller, touched)

    def _on_configs(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        touched.configs.add(rest)
        self._store(self.configs, rest, entry, encoding.decode_configs, touched)

    def _on_acl(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        touched.acls.add(rest)
        self._store(self.acls, rest, entry, encoding.decode_acl, touched)

    def _on_name(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        self._store(self.names, rest, entry, encoding.decode_name, touched)
        alike = self.metric_names.setdefault(metric_name(rest), set())
        if entry is not None:
            alike.add(rest)
            return
        alike.discard(rest)
        if not alike:
            del self.metric_names[metric_name(rest)]

    def _on_topic(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        topic_id = self._checked(key, keys.read_topic_id(rest), entry, touched)
        if topic_id is None:
            return
        before = self._visible_count(topic_id)
        self._store(self.topics, topic_id, entry, lambda found: encoding.decode_topic(found, topic_id), touched)
        touched.topics.add(topic_id)
        after = self._visible_count(topic_id)
        came_or_went = range(min(before, after), max(before, after))
        stored = self.partitions.of_topic(topic_id)
        touched.partitions.update(PartitionKey(topic_id, index) for index in came_or_went if index in stored)
        self._compare_counts(topic_id)

    def _on_partition(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        partition = self._checked(key, keys.read_partition(rest), entry, touched)
        if partition is None:
            return
        touched.partitions.add(partition)
        state = None if entry is None else encoding.read(entry, encoding.decode_partition)
        if entry is None or state is None or isinstance(state, UnreadableEntry):
            self.partitions.remove(partition)
            if isinstance(state, UnreadableEntry):
                self._fail(state, touched)
        else:
            self.partitions.put(partition, Versioned(state, entry.version))
        self._compare_counts(partition.topic_id)

    def _on_creating(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        topic_id = self._checked(key, keys.read_topic_id(rest), entry, touched)
        if topic_id is not None:
            self._store(self.creating, topic_id, entry, encoding.decode_creating, touched)

    def _on_deleted(self, key: str, rest: str, entry: Entry | None, touched: ImageChanges) -> None:
        topic_id = self._checked(key, keys.read_topic_id(rest), entry, touched)
        if topic_id is not None:
            self._store(self.deleted, topic_id, entry, encoding.decode_deleted, touched)

    # -- storing --------------------------------------------------------------------------------------------------

    def _store(
        self,
        table: dict[K, Versioned[V]],
        name: K,
        entry: Entry | None,
        decode: Callable[[Entry], V],
        touched: ImageChanges,
    ) -> None:
        value = None if entry is None else encoding.read(entry, decode)
        if entry is None or value is None or isinstance(value, UnreadableEntry):
            table.pop(name, None)
            if isinstance(value, UnreadableEntry):
                self._fail(value, touched)
        else:
            table[name] = Versioned(value, entry.version, entry.lease)

    def _checked(self, key: str, name: K | None, entry: Entry | None, touched: ImageChanges) -> K | None:
        if name is None and entry is not None:
            self._fail(UnreadableEntry(key, "its key has an unknown form", entry.version), touched)
        return name

    def _fail(self, problem: UnreadableEntry, touched: ImageChanges) -> None:
        self.unreadable[problem.key] = problem
        touched.unreadable.append(problem)

    def _visible_count(self, topic_id: TopicId) -> int:
        found = self.topics.get(topic_id)
        return 0 if found is None else found.value.partition_count

    def _compare_counts(self, topic_id: TopicId) -> None:
        if len(self.partitions.of_topic(topic_id)) > self._visible_count(topic_id):
            self.overfull.add(topic_id)
        else:
            self.overfull.discard(topic_id)
