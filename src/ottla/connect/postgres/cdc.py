"""`ottla connect postgres-cdc`: captures every change of the chosen tables, starting with a consistent snapshot.

    announce   the position records that a snapshot begins, before the slot exists
    snapshot   the slot is created and its exported snapshot is read table by table, one transaction per chunk
    stream     pgoutput is read from the slot; a batch is many transactions, or a part of a very large one

An exported snapshot dies with its connection, so an interrupted snapshot starts over with a new slot. It first writes a
truncate to each topic, which undoes what the earlier attempt wrote there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from ottla.connect.contract import Position, Rows, SourceBatch, TopicSettings
from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.postgres.advice import explained
from ottla.connect.postgres.catalog import Catalog, TableFacts
from ottla.connect.postgres.change_writer import ChangeWriter, schema_topic, table_topic
from ottla.connect.postgres.logical_stream import LogicalStream, StreamPosition
from ottla.connect.postgres.lsn import lsn_text
from ottla.connect.postgres.pgoutput import Column, Relation
from ottla.connect.postgres.replication import CreatedSlot, RefusedError, ReplicationConnection
from ottla.connect.postgres.snapshot import begin_snapshot, read_rows
from ottla.connect.postgres.tables import TableShape
from ottla.connect.postgres.values import SESSION_SETTINGS

log = logging.getLogger(__name__)

RETENTION = {"retention.ms": "-1", "max.message.bytes": str(64 * 1024 * 1024)}
_SLOT_IN_USE = "55006"


@dataclass(frozen=True, slots=True)
class CdcSettings:
    """The settings of a change data capture connector."""

    url: str
    tables: list[str]
    prefix: str
    slot: str
    publication: str
    create_publication: bool = True
    snapshot: bool = True
    tombstones: bool = True
    batch_records: int = 20_000
    batch_bytes: int = 8 * 1024 * 1024
    linger_ms: int = 20
    topic_configs: Mapping[str, str] = field(default_factory=dict)


class PostgresCdc:
    """Implements `ottla.connect.contract.Source`."""

    def __init__(self, settings: CdcSettings) -> None:
        self._settings = settings
        self._catalog: Catalog | None = None
        self._connection: ReplicationConnection | None = None
        self._stream: LogicalStream | None = None
        self._snapshot: AsyncIterator[SourceBatch] | None = None
        self._tables: list[TableFacts] = []
        self._shapes: list[TableShape] = []
        self._attempt = 0
        self._has_run = False
        self._announced = asyncio.Event()
        self._phase = "starting"

    def topic_settings(self, topic: str) -> TopicSettings:
        if topic == schema_topic(self._settings.prefix):
            return TopicSettings(1, {"cleanup.policy": "compact"}, only_partition=True)
        return TopicSettings(1, {**RETENTION, **self._settings.topic_configs}, only_partition=True)

    async def start(self, position: Position | None) -> None:
        settings = self._settings
        self._has_run = position is not None
        self._catalog = await self._open_catalog()
        self._tables = await self._catalog.chosen_tables(settings.tables)
        await self._catalog.ensure_publication(settings.publication, self._tables, create=settings.create_publication)
        await self._warn_of_gaps()
        slot = await self._catalog.slot(settings.slot)
        if position is not None and position["phase"] == "stream":
            if slot is None or slot.is_lost:
                raise NeedsHelpError(self._lost_slot_text(position))
            await self._connect()
            await self._start_stream(StreamPosition.parse(position))
            return
        if position is None and slot is not None:
            raise NeedsHelpError(
                f'PostgreSQL has a replication slot "{settings.slot}" without a position in this log: another '
                "connector uses it. Choose another one (--slot), or drop it: "
                f"SELECT pg_drop_replication_slot('{settings.slot}');"
            )
        if settings.snapshot:
            await self._catalog.check_can_read(self._tables)
        self._attempt = 1 if position is None else int(position["attempt"]) + 1
        self._phase = "snapshot"
        self._snapshot = self._read_snapshot(slot is not None)

    async def _open_catalog(self) -> Catalog:
        try:
            self._catalog = await Catalog.connect(self._settings.url)
            await self._catalog.check_can_stream()
        except NeedsHelpError as failure:
            raise self._in_time(failure) from failure
        return self._catalog

    def _explained(self, failure: Exception) -> ConnectorError:
        return self._in_time(explained(failure, self._settings.url))

    def _in_time(self, failure: ConnectorError) -> ConnectorError:
        """Makes failures retryable once the connector has run.

        The address and the privileges were right before, so whatever is missing now may come back. If the connector
        stopped instead, its slot would hold the server's WAL until the slot's limit is reached.
        """
        return ConnectorError(str(failure)) if self._has_run else failure

    async def poll(self) -> SourceBatch | None:
        try:
            if self._snapshot is not None:
                batch = await anext(self._snapshot, None)
                if batch is not None:
                    return batch
                self._snapshot = None
            assert self._stream is not None
            return await self._stream.poll()
        except (RefusedError, psycopg.Error) as failure:
            raise self._explained(failure) from failure

    async def commit(self, position: Position) -> None:
        if position["phase"] == "announced":
            self._announced.set()
        elif position["phase"] == "stream" and self._stream is not None:
            self._stream.confirm(StreamPosition.parse(position))

    async def stop(self) -> None:
        if self._stream is not None:
            await self._stream.close()
        if self._connection is not None:
            await self._connection.close()
        if self._catalog is not None:
            await self._catalog.close()

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {"phase": self._phase, "tables": [each.name for each in self._tables]}
        return described | (self._stream.describe() if self._stream is not None else {})

    # Snapshot.

    async def _read_snapshot(self, has_slot: bool) -> AsyncIterator[SourceBatch]:
        """Announces the snapshot and waits until the announcement is in the log.

        From then on, a slot found at the next start is known to belong to this connector.
        """
        settings = self._settings
        empty = {table_topic(settings.prefix, each.name): Rows() for each in self._tables}
        yield SourceBatch(empty, {"phase": "announced", "attempt": self._attempt})
        await self._announced.wait()
        await self._connect()
        slot = await self._new_slot(has_slot)
        writer = self._writer()
        assert self._catalog is not None
        if settings.snapshot:
            assert slot.snapshot_name is not None
            await begin_snapshot(self._catalog.connection, slot.snapshot_name)
        self._shapes = shapes = [await self._shape_now(each) for each in self._tables]
        chunk = 1
        writer.begin_snapshot(slot.consistent_lsn, chunk)
        for shape in shapes if self._attempt > 1 else ():
            writer.empty(shape, slot.consistent_lsn)
        for shape in shapes if settings.snapshot else ():
            columns = [column.name for column in shape.relation.columns]
            rows_of = read_rows(self._catalog.connection, shape.relation.schema, shape.relation.table, columns)
            async for rows in rows_of:
                for row in rows:
                    writer.read(shape, row, slot.consistent_lsn)
                if writer.record_count >= settings.batch_records or writer.size_bytes >= settings.batch_bytes:
                    writer.end()
                    yield SourceBatch(writer.take(), {"phase": "announced", "attempt": self._attempt})
                    chunk += 1
                    writer.begin_snapshot(slot.consistent_lsn, chunk)
        writer.end()
        if settings.snapshot:
            await self._catalog.connection.execute("COMMIT")
        position = StreamPosition(slot.consistent_lsn, attempt=self._attempt)
        yield SourceBatch(writer.take(), position.to_json())
        await self._start_stream(position)

    async def _new_slot(self, has_slot: bool) -> CreatedSlot:
        assert self._connection is not None
        name = self._settings.slot
        try:
            if has_slot:
                await self._connection.drop_slot(name, wait=False)
            return await self._connection.create_logical_slot(
                name, snapshot="export" if self._settings.snapshot else "noexport"
            )
        except RefusedError as failure:
            raise self._explained(failure) from failure

    async def _shape_now(self, table: TableFacts) -> TableShape:
        """Returns the shape of a table as the catalog shows it in the snapshot."""
        assert self._catalog is not None
        facts = await self._catalog.columns(table.oid)
        keys = set(table.key_columns)
        columns = tuple(Column(name, each.type_oid, each.type_modifier, name in keys) for name, each in facts.items())
        relation = Relation(table.oid, table.schema, table.table, table.identity, columns)
        return TableShape(relation, table.key_columns, await self._catalog.types(), facts)

    # Stream.

    async def _connect(self) -> None:
        try:
            self._connection = await ReplicationConnection.connect(self._settings.url, settings=SESSION_SETTINGS)
        except RefusedError as failure:
            raise self._explained(failure) from failure

    async def _start_stream(self, position: StreamPosition) -> None:
        settings = self._settings
        assert self._connection is not None
        assert self._catalog is not None
        publication = settings.publication.replace('"', '""')
        options = {"proto_version": "1", "publication_names": f'"{publication}"'}
        try:
            await self._connection.start_logical(settings.slot, position.lsn, options)
        except RefusedError as failure:
            if failure.sqlstate == _SLOT_IN_USE:
                raise ConnectorError(
                    f"{failure}: another connector uses it, or PostgreSQL has not noticed yet that the "
                    "previous connection ended"
                ) from failure
            raise self._explained(failure) from failure
        self._phase = "stream"
        self._stream = LogicalStream(
            self._connection,
            self._catalog,
            self._writer(),
            self._shapes,
            position,
            settings.batch_records,
            settings.batch_bytes,
            settings.linger_ms,
        )

    def _writer(self) -> ChangeWriter:
        assert self._catalog is not None
        database = self._catalog.connection.info.dbname
        return ChangeWriter(self._settings.prefix, database, tombstones=self._settings.tombstones)

    async def _warn_of_gaps(self) -> None:
        """Warns about tables whose updates omit unchanged large values."""
        assert self._catalog is not None
        for table in self._tables:
            if table.identity == "f":
                continue
            columns = await self._catalog.columns(table.oid)
            large = [name for name, each in columns.items() if each.storage != "p" and each.type_text not in _SHORT]
            if large:
                log.warning(
                    "%s: updates that do not change a large value (over 2 kB) of %s do not contain it; for "
                    "complete rows, run: ALTER TABLE %s REPLICA IDENTITY FULL;",
                    table.name,
                    ", ".join(large),
                    table.name,
                )

    def _lost_slot_text(self, position: Position) -> str:
        return (
            f'the replication slot "{self._settings.slot}" was dropped, or PostgreSQL has removed the WAL that it '
            f"needs (max_slot_wal_keep_size): changes since {lsn_text(int(position['lsn']))} can no longer be read. To "
            "start again with a snapshot, which also corrects the topics, run: ottla connect reset NAME"
        )


_SHORT = ("numeric", "inet", "cidr")
