"""In a cluster, what a broker that is alone keeps in its catalog is in the coordination store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from ottla.broker.catalog import CatalogState, TopicRecord
from ottla.model.ids import TopicId


class NoCatalog:
    """Implements `broker.catalog.Catalog`. Nothing of it is called; if it is, that is a bug."""

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
