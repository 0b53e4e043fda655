"""The catalog of a broker in a cluster: there is none, because the coordination store holds the metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from ottla.broker.topics.catalog import CatalogState, TopicRecord
from ottla.protocol.model.ids import TopicId


class NoCatalog:
    """Implements `broker.catalog.Catalog`. A call of any method but `close` is a bug."""

    def load(self) -> CatalogState:
        _fail()

    def begin_incarnation(self) -> int:
        _fail()

    def put_topic(self, topic: TopicRecord) -> None:
        _fail()

    def put_topics(self, topics: Sequence[TopicRecord]) -> None:
        _fail()

    def delete_topic(self, topic_id: TopicId, gone: Iterable[TopicId] = ()) -> None:
        _fail()

    def forget_deleted(self, gone: Iterable[TopicId]) -> None:
        _fail()

    def put_dynamic_configs(self, configs: Mapping[str, str]) -> None:
        _fail()

    def reserve_producer_ids(self, count: int) -> int:
        _fail()

    def reserve_offsets(self, ends: Mapping[tuple[TopicId, int], int]) -> None:
        _fail()

    def close(self) -> None: ...


def _fail() -> NoReturn:
    raise RuntimeError("a broker of a cluster has no catalog of its own")
