"""A catalog in memory. Changes count as durable, since the real catalog is transactional. It survives a
broker crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ottla.broker.standalone.catalog import CatalogState, TopicRecord
from ottla.protocol.model.ids import TopicId


class SimCatalog:
    """Implements `broker.standalone.catalog.Catalog`. A restarted broker gets the same object."""

    def __init__(self, *, cluster_id: str = "simulated-cluster-id-0") -> None:
        self._state = CatalogState(cluster_id=cluster_id, incarnation=0)
        self._failure: int | None = None

    def fail(self, error: int | None = errno.ENOSPC) -> None:
        """Makes every later change raise this error and change nothing; None ends the fault."""
        self._failure = error

    def load(self) -> CatalogState:
        state = self._state
        return replace(
            state,
            topics=sorted((_copy(topic) for topic in state.topics), key=lambda topic: topic.name),
            dynamic_configs=dict(sorted(state.dynamic_configs.items())),
            reserved_offsets=dict(state.reserved_offsets),
            entries=dict(state.entries),
        )

    def begin_incarnation(self) -> int:
        self._demand_health()
        self._state.incarnation += 1
        return self._state.incarnation

    def put_topic(self, topic: TopicRecord) -> None:
        self.put_topics([topic])

    def put_topics(self, topics: Sequence[TopicRecord]) -> None:
        self._demand_health()
        by_id = {topic.id: topic for topic in self._state.topics}
        by_id.update({topic.id: _copy(topic) for topic in topics})
        if len({topic.name for topic in by_id.values()}) < len(by_id):
            raise OSError(errno.EEXIST, "the metadata has another topic of this name")
        self._state.topics = list(by_id.values())

    def delete_topic(self, topic_id: TopicId, gone: Iterable[TopicId] = ()) -> None:
        self._demand_health()
        self._state.deleted = (self._state.deleted - frozenset(gone)) | {topic_id}
        self._state.topics = [topic for topic in self._state.topics if topic.id != topic_id]
        kept = {key: end for key, end in self._state.reserved_offsets.items() if key[0] != topic_id}
        self._state.reserved_offsets = kept

    def forget_deleted(self, gone: Iterable[TopicId]) -> None:
        self._demand_health()
        self._state.deleted -= frozenset(gone)

    def put_dynamic_configs(self, configs: Mapping[str, str]) -> None:
        self._demand_health()
        self._state.dynamic_configs = dict(configs)

    def change_entries(self, puts: Mapping[str, bytes], deletes: Iterable[str] = ()) -> None:
        self._demand_health()
        for key in deletes:
            self._state.entries.pop(key, None)
        self._state.entries.update(puts)

    def reserve_producer_ids(self, count: int) -> int:
        self._demand_health()
        first = self._state.next_producer_id
        self._state.next_producer_id += count
        return first

    def reserve_offsets(self, ends: Mapping[tuple[TopicId, int], int]) -> None:
        self._demand_health()
        reserved = self._state.reserved_offsets
        for key, end in ends.items():
            reserved[key] = max(end, reserved.get(key, 0))

    def close(self) -> None:
        return

    def _demand_health(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure, os.strerror(self._failure))


def _copy(topic: TopicRecord) -> TopicRecord:
    return replace(topic, overrides=dict(topic.overrides))
