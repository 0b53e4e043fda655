"""The part of `ottla.wal.SyncLog` that this package uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from ottla.wal import Entry, Tail


class ReadableLog(Protocol):
    def tail(self) -> Tail: ...
    def read_chunks(self, first: int, until: int | None = None) -> Iterator[list[Entry]]: ...


class WritableLog(ReadableLog, Protocol):
    def append_many(self, data: Iterable[bytes], *, expected_end: int | None = None) -> range: ...
    def trim(self, before: int) -> int: ...
