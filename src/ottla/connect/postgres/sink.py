"""`ottla connect postgres-sink`: applies the topics of `postgres-cdc` to another database, transaction by transaction.

A transaction on the target contains one or more whole transactions of the source, in order, together with the offsets
that they reach. After a crash, PostgreSQL rolls back the open transaction and the sink resumes exactly at those
offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import psycopg

from ottla.client import Admin, Consumer
from ottla.client.consumer.types import ConsumerRecord, TopicPartition
from ottla.connect.contract import DeadLetters
from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.postgres.advice import explained
from ottla.connect.postgres.change_writer import schema_topic, transaction_topic
from ottla.connect.postgres.statements import Kind, Run, runs, statement
from ottla.connect.postgres.target_tables import Schema, TargetTable, TargetTables
from ottla.connect.postgres.transaction_order import (
    Change,
    NotAChangeError,
    TransactionEnd,
    TransactionOrder,
    parse_change,
)
from ottla.connect.postgres.values import SESSION_SETTINGS

LARGE_TRANSACTION = 20_000
"""Maximum number of changes of one transaction buffered in memory; beyond it, changes are applied before the
transaction's end."""
_PREPARE = """
    CREATE SCHEMA IF NOT EXISTS ottla_connect;
    CREATE TABLE IF NOT EXISTS ottla_connect.positions (
        connector text, topic text, partition int, next_offset bigint NOT NULL,
        PRIMARY KEY (connector, topic, partition));
    CREATE TABLE IF NOT EXISTS ottla_connect.schemas (
        connector text, source text, described jsonb NOT NULL, PRIMARY KEY (connector, source));"""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The settings of a PostgreSQL sink."""

    url: str
    prefix: str
    name: str
    schema: str | None = None
    applies_schema_changes: bool = False


class PostgresSink:
    """Implements `ottla.connect.contract.Sink`."""

    may_begin_late = False

    def __init__(self, settings: SinkSettings, bootstrap: str) -> None:
        self._settings = settings
        self._bootstrap = bootstrap
        self.topics: list[str] = []
        self._order = TransactionOrder()
        self._schemas: dict[str, Schema] = {}
        self._offsets: dict[str, int] = {}
        self._unfinished: list[Change] = []
        self._last_transaction = ""
        self._changes = 0
        self._is_open = False

    @property
    def paused(self) -> list[TopicPartition]:
        return [TopicPartition(topic, 0) for topic in self._order.crowded_topics]

    def describe(self) -> dict[str, Any]:
        return {"changes": self._changes, "transaction": self._last_transaction}

    async def start(self, dead_letters: DeadLetters) -> Mapping[TopicPartition, int]:
        self._dead_letters = dead_letters
        self.topics = await self._find_topics()
        settings = self._settings
        options = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
        try:
            self._connection = await psycopg.AsyncConnection.connect(
                settings.url, autocommit=True, connect_timeout=15, options=options, application_name="ottla sink"
            )
            await self._lock()
            await self._connection.execute(_PREPARE)
            cursor = await self._connection.execute(
                "SELECT topic, partition, next_offset FROM ottla_connect.positions WHERE connector = %s",
                [settings.name],
            )
            known = {TopicPartition(topic, partition): offset for topic, partition, offset in await cursor.fetchall()}
        except psycopg.Error as failure:
            raise explained(failure, settings.url) from failure
        self._tables = TargetTables(
            self._connection, settings.name, settings.schema, applies_changes=settings.applies_schema_changes
        )
        return known

    async def _lock(self) -> None:
        """Takes an advisory lock, so that only one sink of this name runs. PostgreSQL releases it when the connection
        ends."""
        cursor = await self._connection.execute(
            "SELECT pg_try_advisory_lock(hashtextextended('ottla connect ' || %s, 0))", [self._settings.name]
        )
        row = await cursor.fetchone()
        if row is None or not row[0]:
            raise ConnectorError(
                f'another sink "{self._settings.name}" is writing to this database; stop it, or choose another --name'
            )

    async def _find_topics(self) -> list[str]:
        prefix = self._settings.prefix
        boundaries = transaction_topic(prefix)
        async with Admin(self._bootstrap) as admin:
            listed = [each.name for each in await admin.list_topics()]
        if boundaries not in listed:
            raise ConnectorError(
                f'there is no topic "{boundaries}" yet: `ottla connect postgres-cdc --prefix {prefix}` creates it'
            )
        own = (schema_topic(prefix), boundaries)
        return [boundaries, *(name for name in listed if name.startswith(f"{prefix}.") and name not in own)]

    # Records.

    async def put(self, records: Sequence[ConsumerRecord]) -> None:
        boundaries = transaction_topic(self._settings.prefix)
        for record in records:
            if record.value is None:
                continue  # a tombstone; the delete before it is applied
            try:
                if record.topic == boundaries:
                    self._order.add_boundary(record)
                else:
                    self._order.add_change(parse_change(record))
            except NotAChangeError as reason:
                await self._dead_letters(record, str(reason))
        self._check_topics()
        await self._apply_ready()

    def _check_topics(self) -> None:
        known = set(self.topics)
        for name in self._order.collections:
            if f"{self._settings.prefix}.{name}" not in known:
                raise ConnectorError(f"new table {name}; its topic will be read after a restart")

    async def _apply_ready(self) -> None:
        """Applies all complete transactions at once. Changes after the last complete one stay buffered unless they are
        too many."""
        changes, self._unfinished = self._unfinished, []
        ended: TransactionEnd | None = None
        whole = 0
        for each in self._order.take():
            if isinstance(each, TransactionEnd):
                ended, whole = each, len(changes)
            else:
                changes.append(each)
        try:
            if ended is not None:
                await self._apply(changes[:whole])
                await self._finish(ended)
                changes = changes[whole:]
            if len(changes) >= LARGE_TRANSACTION:
                await self._apply(changes)
                changes = []
        except psycopg.Error as failure:
            raise explained(failure, self._settings.url) from failure
        self._unfinished = changes

    async def _apply(self, changes: list[Change]) -> None:
        if not self._is_open:
            await self._connection.execute("BEGIN")
            self._is_open = True
        ready: list[tuple[Change, TargetTable]] = []
        for change in changes:
            target = self._tables.get(f"{change.schema}.{change.table}", change.schema_id)
            if target is None:
                await self._execute(ready)
                ready = []
                target = await self._tables.open(change.schema_id, await self._schema(change.schema_id))
            ready.append((change, target))
            self._offsets[change.topic] = change.offset + 1
        await self._execute(ready)
        self._changes += len(changes)

    async def _execute(self, changes: list[tuple[Change, TargetTable]]) -> None:
        every = list(runs(changes))
        partial: list[tuple[Run, psycopg.AsyncCursor[Any]]] = []
        current: Run | None = None
        try:
            async with self._connection.pipeline():
                for current in every:
                    command, values = statement(current)
                    cursor = await self._connection.execute(command.encode(), values)
                    if current.kind is Kind.PARTIAL:
                        partial.append((current, cursor))
        except (
            psycopg.DataError,
            psycopg.IntegrityError,
            psycopg.ProgrammingError,
            psycopg.NotSupportedError,
        ) as failure:
            raise self._mismatch(failure, every) from failure
        except KeyError as missing:
            assert current is not None
            raise self._no_column(str(missing), current) from missing
        for run, cursor in partial:
            if cursor.rowcount == 0:
                raise self._no_row(run)

    async def _finish(self, ended: TransactionEnd) -> None:
        self._offsets[transaction_topic(self._settings.prefix)] = ended.offset + 1
        topics, offsets = list(self._offsets), list(self._offsets.values())
        await self._connection.execute(
            "INSERT INTO ottla_connect.positions SELECT %s, t, 0, o FROM unnest(%s::text[], %s::bigint[]) AS u(t, o) "
            "ON CONFLICT (connector, topic, partition) DO UPDATE SET next_offset = excluded.next_offset",
            [self._settings.name, topics, offsets],
        )
        await self._connection.execute("COMMIT")
        self._is_open = False
        self._last_transaction = ended.transaction

    async def commit(self) -> None:
        """Does nothing: `put` commits at the ends of transactions."""

    async def stop(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            await connection.close()

    # Schemas.

    async def _schema(self, schema_id: str) -> Schema:
        if schema_id not in self._schemas:
            await self._read_schemas()
        found = self._schemas.get(schema_id)
        if found is None:
            topic = schema_topic(self._settings.prefix)
            raise NeedsHelpError(
                f"{topic} does not have the schema {schema_id}, which changes refer to; was it deleted?"
            )
        return found

    async def _read_schemas(self) -> None:
        partition = (schema_topic(self._settings.prefix), 0)
        async with Consumer(
            self._bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[consumer.assignment[0]]
            await consumer.seek_to_beginning(partition)
            while (found := await consumer.fetch_range(partition, end, timeout_ms=60_000)) is not None:
                keys, values = (found[0].column(name).to_pylist() for name in ("key", "value"))
                self._schemas |= {key.decode(): orjson.loads(value) for key, value in zip(keys, values, strict=True)}

    # Mismatches.

    def _mismatch(self, failure: psycopg.Error, every: list[Run]) -> NeedsHelpError:
        tables = ", ".join(sorted({run.target.name for run in every}))
        return NeedsHelpError(
            f"the target rejected a change of {tables} (transaction after "
            f"{self._last_transaction or 'the first'}): {' '.join(str(failure).split())}. Nothing of the "
            "transaction was applied. Change the table to match the source (ALTER TABLE ...), and restart"
        )

    def _no_column(self, name: str, run: Run) -> NeedsHelpError:
        return NeedsHelpError(
            f"{run.target.name} has no column {name}, which the change at {run.changes[0].topic} offset "
            f"{run.changes[0].offset} contains. Add it (ALTER TABLE {run.target.name} ADD COLUMN ...), or let "
            "this sink do so: --apply-schema-changes"
        )

    def _no_row(self, run: Run) -> NeedsHelpError:
        change = run.changes[0]
        return NeedsHelpError(
            f"{run.target.name} has no row {(change.key or b'').decode()}, and the update at {change.topic} "
            f"offset {change.offset} lacks unchanged values: another program has changed the target. To fill "
            "it again, empty it and choose another --name"
        )
