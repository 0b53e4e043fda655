"""Restores the transaction order of changes that arrive from several topics. Pure.

The transaction topic gives the order of transactions and the number of changes in each. Each change names its
transaction and its number within it. A topic delivers its own changes in order, but some topics run ahead of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from ottla.client.consumer.types import ConsumerRecord
from ottla.connect.postgres.change_writer import NEW_KEY_HEADER

WAITING_MAX = 50_000
"""Maximum number of pending changes over all topics. Beyond it, only topics without pending changes are read."""


class NotAChangeError(Exception):
    """The record is not a change that can be applied. The message says why."""


class Change(NamedTuple):
    """A change of one row, or a truncate of one table."""

    topic: str
    offset: int
    transaction: str
    order: int
    op: str
    schema: str
    table: str
    schema_id: str
    key: bytes | None
    row: dict[str, Any]
    unchanged: tuple[str, ...]
    """Columns that have no value in the row."""
    new_key: bytes | None
    """The new key, if this delete is the first half of a key change."""


class TransactionEnd(NamedTuple):
    """A transaction is complete."""

    transaction: str
    offset: int
    """The offset of its END in the transaction topic."""


def parse_change(record: ConsumerRecord) -> Change:
    """Parses a record. Raises NotAChangeError if it is not a change that can be applied."""
    try:
        envelope = orjson.loads(record.value or b"")
        source, transaction = envelope["source"], envelope["transaction"]
        op = envelope["op"]
        new_key = next((value for name, value in record.headers if name == NEW_KEY_HEADER), None)
        orjson.loads(record.key or b"{}")
        return Change(
            topic=record.topic,
            offset=record.offset,
            transaction=transaction["id"],
            order=transaction["total_order"],
            op=op,
            schema=source["schema"],
            table=source["table"],
            schema_id=source["schema_id"],
            key=record.key,
            row=envelope["after"] or {},
            unchanged=tuple(source.get("unchanged", ())),
            new_key=new_key,
        )
    except (ValueError, KeyError, TypeError) as mistake:
        reason = f"not a change written by `ottla connect postgres-cdc`: {type(mistake).__name__}: {mistake}"
        raise NotAChangeError(reason) from mistake


class TransactionOrder:
    """Buffers changes until it is their turn."""

    def __init__(self) -> None:
        self._begun: deque[str] = deque()
        self._ends: dict[str, tuple[int, int]] = {}
        self._waiting: dict[tuple[str, int], Change] = {}
        self._waiting_of: dict[str, int] = {}
        self._current: str | None = None
        self._next = 1
        self.collections: set[str] = set()
        """The tables that transactions have named."""

    @property
    def crowded_topics(self) -> list[str]:
        """The topics to pause, because the next change is in another one."""
        if len(self._waiting) < WAITING_MAX:
            return []
        return [topic for topic, count in self._waiting_of.items() if count]

    def add_change(self, change: Change) -> None:
        """Buffers a change until `take` reaches its place in the order of transactions."""
        self._waiting[change.transaction, change.order] = change
        self._waiting_of[change.topic] = self._waiting_of.get(change.topic, 0) + 1

    def add_boundary(self, record: ConsumerRecord) -> None:
        """Adds a record of the transaction topic. Raises NotAChangeError if it is not a BEGIN or END."""
        try:
            boundary = orjson.loads(record.value or b"")
            status, name = boundary["status"], boundary["id"]
            if status == "BEGIN":
                self._begun.append(name)
            elif status == "END":
                self._ends[name] = (boundary["event_count"], record.offset)
                self.collections |= {each["data_collection"] for each in boundary["data_collections"]}
            else:
                raise NotAChangeError(f"a transaction boundary must be BEGIN or END, not {status}")
        except (ValueError, KeyError, TypeError) as mistake:
            raise NotAChangeError(f"not a transaction boundary: {type(mistake).__name__}: {mistake}") from mistake

    def take(self) -> Iterator[Change | TransactionEnd]:
        """Yields the changes that are next in order, as far as they have arrived."""
        while True:
            if self._current is None:
                if not self._begun:
                    return
                self._current, self._next = self._begun.popleft(), 1
            change = self._waiting.pop((self._current, self._next), None)
            if change is not None:
                self._waiting_of[change.topic] -= 1
                self._next += 1
                yield change
                continue
            end = self._ends.get(self._current)
            if end is None or self._next <= end[0]:
                return
            del self._ends[self._current]
            yield TransactionEnd(self._current, end[1])
            self._current = None
