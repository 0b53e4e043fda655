"""Reads the stream of a logical slot and splits it into batches at transaction boundaries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ottla.connect.contract import Position, SourceBatch
from ottla.connect.failures import NeedsHelpError
from ottla.connect.postgres.catalog import Catalog
from ottla.connect.postgres.change_writer import ChangeWriter
from ottla.connect.postgres.lsn import lsn_text
from ottla.connect.postgres.pgoutput import Begin, Commit, Delete, Insert, Relation, Truncate, Update, decode
from ottla.connect.postgres.replication import Keepalive, ReplicationConnection, WalData
from ottla.connect.postgres.tables import TableShape, facts_then, key_columns_of
from ottla.connect.postgres.values import TypeInfo

IDLE_S = 1.0
STATUS_EVERY_S = 5.0
LARGE_TRANSACTION = 2
"""A transaction larger than this many batches is written to the log in parts."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where a stream resumes."""

    lsn: int
    """Transactions that commit before this LSN are in the log."""
    part_of: int = 0
    """The commit LSN of a transaction whose first `events` changes are in the log; 0 if there is none."""
    events: int = 0
    attempt: int = 1

    @classmethod
    def parse(cls, position: Position) -> StreamPosition:
        """Reads a stored position; keys that older versions did not write get their defaults."""
        return cls(position["lsn"], position.get("part_of", 0), position.get("events", 0), position.get("attempt", 1))

    def to_json(self) -> Position:
        """Returns the position as it is stored; `at` repeats the LSN for human readers."""
        part = {"part_of": self.part_of, "events": self.events} if self.part_of else {}
        return {"phase": "stream", "lsn": self.lsn, "at": lsn_text(self.lsn), "attempt": self.attempt, **part}


class LogicalStream:
    """The stream of a connection on which replication has started. Sends status updates to prevent the server's
    timeout."""

    def __init__(
        self,
        connection: ReplicationConnection,
        catalog: Catalog,
        writer: ChangeWriter,
        shapes: Iterable[TableShape],
        position: StreamPosition,
        batch_records: int,
        batch_bytes: int,
        linger_ms: int,
    ) -> None:
        self._connection = connection
        self._catalog = catalog
        self._writer = writer
        self._resumed = position
        self._lsn = position.lsn
        self._flushed_lsn = position.lsn
        self._server_lsn = position.lsn
        self._batch_records = batch_records
        self._batch_bytes = batch_bytes
        self._linger_s = linger_ms / 1000
        self._begun: Begin | None = None
        self._is_known = False
        """Whether the open transaction is already in the log."""
        self._unconfirmed: list[StreamPosition] = []
        self._shapes = {each.relation.oid: each for each in shapes}
        self._types: dict[int, TypeInfo] = {}
        self._beating = asyncio.create_task(self._keep_alive())

    async def close(self) -> None:
        """Stops the status updates. The connection stays open; its owner closes it."""
        self._beating.cancel()
        await asyncio.wait([self._beating])

    def describe(self) -> dict[str, Any]:
        """Returns the confirmed LSN and its distance to the server's, for the status report."""
        return {"lsn": lsn_text(self._flushed_lsn), "lag_bytes": max(0, self._server_lsn - self._flushed_lsn)}

    def confirm(self, position: StreamPosition) -> None:
        """Confirms that everything before `position` is in the log, so PostgreSQL may discard it."""
        if position in self._unconfirmed:
            self._unconfirmed.remove(position)
        if position.lsn > self._flushed_lsn:
            self._flushed_lsn = position.lsn
            self._connection.send_status(self._flushed_lsn)

    async def poll(self) -> SourceBatch | None:
        """Returns the next batch, or None if nothing arrives for `IDLE_S`."""
        until_s: float | None = None
        while True:
            now_s = time.monotonic()
            if self._writer.record_count and until_s is None:
                until_s = now_s + self._linger_s
            if self._is_due(until_s, now_s):
                return self._take()
            left_s = IDLE_S if until_s is None or self._begun is not None else max(0.001, until_s - now_s)
            messages = await self._connection.receive(timeout_s=left_s)
            if not messages and until_s is None:
                return None
            for message in messages:
                if isinstance(message, WalData):
                    if self._feed(bytes(message.data), message.start_lsn) is not None:
                        await self._on_relation(decode(bytes(message.data)))
                    self._server_lsn = message.end_lsn
                else:
                    self._on_keepalive(message)

    def _is_due(self, until_s: float | None, now_s: float) -> bool:
        """Returns whether the batch should be taken now.

        Between transactions, a batch is due after a short linger or when it is full. Within a transaction, it is due
        only when it is very large.
        """
        records, size = self._writer.record_count, self._writer.size_bytes
        if self._begun is None:
            return records > 0 and (
                records >= self._batch_records
                or size >= self._batch_bytes
                or (until_s is not None and now_s >= until_s)
            )
        return records >= LARGE_TRANSACTION * self._batch_records or size >= LARGE_TRANSACTION * self._batch_bytes

    def _take(self) -> SourceBatch:
        position = StreamPosition(self._lsn, attempt=self._resumed.attempt)
        if self._begun is not None:
            position = StreamPosition(self._lsn, self._begun.commit_lsn, self._writer.events, self._resumed.attempt)
        self._unconfirmed.append(position)
        return SourceBatch(self._writer.take(), position.to_json())

    def _feed(self, data: bytes, lsn: int) -> Relation | None:
        """Processes one message. Returns a Relation to the caller, which must query the catalog to handle it."""
        change = decode(data)
        if isinstance(change, Begin):
            self._begun = change
            self._is_known = change.commit_lsn < self._resumed.lsn
            skip = self._resumed.events if change.commit_lsn == self._resumed.part_of else 0
            self._writer.begin(change, skip=skip)
        elif isinstance(change, Commit):
            if not self._is_known:
                self._writer.end()
            self._begun = None
            self._lsn = max(self._lsn, change.end_lsn)
        elif isinstance(change, Relation):
            return change
        elif change is not None and not self._is_known:
            self._write(change, lsn)
        return None

    def _write(self, change: Insert | Update | Delete | Truncate, lsn: int) -> None:
        if isinstance(change, Truncate):
            self._writer.truncate(self._shapes, change, lsn)
            return
        shape = self._shapes[change.oid]
        if isinstance(change, Insert):
            self._writer.insert(shape, change, lsn)
        elif isinstance(change, Update):
            self._writer.update(shape, change, lsn)
        else:
            self._writer.delete(shape, change, lsn)

    async def _on_relation(self, relation: object) -> None:
        assert isinstance(relation, Relation)
        if any(column.type_oid not in self._types for column in relation.columns):
            self._types = await self._catalog.types()
        table = await self._catalog.table(relation.oid)
        key = key_columns_of(relation, () if table is None else table.key_columns)
        if not key:
            raise NeedsHelpError(
                f"the table {relation.schema}.{relation.table} no longer has a primary key. Add one, or remove "
                "the table from the publication: ALTER PUBLICATION ... DROP TABLE "
                f"{relation.schema}.{relation.table};"
            )
        known = self._shapes.get(relation.oid)
        facts = facts_then(relation, await self._catalog.columns(relation.oid), known.facts if known else {})
        self._shapes[relation.oid] = TableShape(relation, key, self._types, facts)

    def _on_keepalive(self, message: Keepalive) -> None:
        """Advances the flushed LSN to the server's if nothing is pending, because the WAL up to there has no changes to
        capture."""
        self._server_lsn = max(self._server_lsn, message.end_lsn)
        if self._begun is None and not self._unconfirmed and not self._writer.record_count:
            self._flushed_lsn = max(self._flushed_lsn, message.end_lsn)
        if message.wants_reply:
            self._connection.send_status(self._flushed_lsn)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            self._connection.send_status(self._flushed_lsn)
