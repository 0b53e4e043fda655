"""Reads tables, types, slots and publications from PostgreSQL's catalogs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.sql import SQL, Identifier

from ottla.connect.failures import ConnectorError, NeedsHelpError
from ottla.connect.postgres.advice import explained, user_of
from ottla.connect.postgres.lsn import parse_lsn
from ottla.connect.postgres.tables import ColumnFacts
from ottla.connect.postgres.values import SESSION_SETTINGS, TypeInfo

CONNECT_TIMEOUT_S = 15
_TYPES = """
    SELECT oid, typname, typtype::text, CASE WHEN typcategory = 'A' THEN typelem ELSE 0 END, typbasetype, typdelim::text
    FROM pg_type"""
_TABLES = """
    SELECT c.oid, n.nspname, c.relname, c.relreplident::text, c.relkind::text,
           coalesce((SELECT array_agg(a.attname ORDER BY k.place)
                     FROM pg_index i, unnest(i.indkey::int[]) WITH ORDINALITY k(number, place), pg_attribute a
                     WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND a.attnum = k.number
                       AND k.place <= i.indnkeyatts
                       AND CASE WHEN c.relreplident = 'i' THEN i.indisreplident ELSE i.indisprimary END), '{}')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"""
_COLUMNS = """
    SELECT attname, attnum, format_type(atttypid, atttypmod),
           CASE WHEN atthasmissing THEN attmissingval::text END, atttypid, atttypmod, attstorage::text
    FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table, its replica identity and its key columns."""

    oid: int
    schema: str
    table: str
    identity: str
    key_columns: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name with its schema, without quotes."""
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """The state of a replication slot."""

    is_active: bool
    confirmed_lsn: int
    is_lost: bool
    """The server has removed WAL that the slot still needed, because of max_slot_wal_keep_size."""


class Catalog:
    """Queries the catalogs over a connection of its own. Created by `connect`."""

    def __init__(self, url: str, connection: psycopg.AsyncConnection[Any]) -> None:
        self._url = url
        self.connection = connection

    @classmethod
    async def connect(cls, url: str) -> Catalog:
        """Opens a connection. Raises ConnectorError or NeedsHelpError, with advice for the operator."""
        options = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
        try:
            connection = await psycopg.AsyncConnection.connect(
                url,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                options=options,
                application_name="ottla connect",
            )
        except psycopg.Error as failure:
            raise explained(failure, url) from failure
        return cls(url, connection)

    async def close(self) -> None:
        """Closes the connection."""
        await self.connection.close()

    async def ask(self, question: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        """Returns the rows of a query. Raises ConnectorError or NeedsHelpError."""
        try:
            cursor = await self.connection.execute(question, values)
            return await cursor.fetchall()
        except psycopg.Error as failure:
            raise explained(failure, self._url) from failure

    async def types(self) -> dict[int, TypeInfo]:
        """Returns all types of the database by oid."""
        return {row[0]: TypeInfo(*row) for row in await self.ask(_TYPES)}

    async def table(self, oid: int) -> TableFacts | None:
        """Returns the table with this oid, or None if it has been dropped."""
        rows = await self.ask(_TABLES + " WHERE c.oid = %s", oid)
        return _table_facts(rows[0]) if rows else None

    async def columns(self, oid: int) -> dict[str, ColumnFacts]:
        """Returns the columns of a table by name, without dropped and generated ones."""
        rows = await self.ask(_COLUMNS, oid)
        return {row[0]: ColumnFacts(row[1], row[2], _only_element(row[3]), *row[4:]) for row in rows}

    async def chosen_tables(self, names: Sequence[str]) -> list[TableFacts]:
        """Returns the tables that match the names: `schema.table`, `table` in the schema public, or `schema.*`.

        Raises NeedsHelpError if a table does not exist or has no key.
        """
        rows = await self.ask(_TABLES + " WHERE c.relkind = 'r' AND n.nspname !~ '^pg_' ORDER BY 2, 3")
        known = [_table_facts(row) for row in rows if row[1] != "information_schema"]
        chosen: dict[str, TableFacts] = {}
        for name in names:
            schema, _, table = name.rpartition(".")
            schema = schema or "public"
            found = [each for each in known if each.schema == schema and table in ("*", each.table)]
            if not found:
                there = ", ".join(each.name for each in known[:20]) or "none"
                raise NeedsHelpError(f'there is no table "{schema}.{table}"; this database has: {there}')
            chosen |= {each.name: each for each in found}
        for each in chosen.values():
            _check_key(each)
        return list(chosen.values())

    async def check_can_stream(self) -> None:
        """Checks that the server can decode its WAL and that the user may replicate.

        Raises ConnectorError while the server is in recovery, because its slots and publications cannot be checked
        before recovery ends.
        """
        if (await self.ask("SELECT pg_is_in_recovery()"))[0][0]:
            raise ConnectorError("PostgreSQL is in recovery or a standby; changes can be read only from a primary")
        level = (await self.ask("SELECT current_setting('wal_level')"))[0][0]
        if level != "logical":
            raise NeedsHelpError(
                f"wal_level of PostgreSQL is {level}, but must be logical. Run: ALTER SYSTEM SET wal_level = "
                "logical; and restart PostgreSQL"
            )
        rows = await self.ask("SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user")
        if not rows or not rows[0][0]:
            user = user_of(self._url)
            raise NeedsHelpError(
                f"{user} has no replication right. A superuser must run: ALTER ROLE {user} REPLICATION;"
            )

    async def check_can_read(self, tables: Sequence[TableFacts]) -> None:
        """Checks the privileges to read the tables.

        Call it before creating a slot: an unread slot fills the server's disk.
        """
        for table in tables:
            may_read = await self.ask(
                "SELECT has_schema_privilege(%s, 'USAGE') AND has_table_privilege(%s::oid, 'SELECT')",
                table.schema,
                table.oid,
            )
            if not may_read[0][0]:
                user = user_of(self._url)
                raise NeedsHelpError(
                    f"{user} is not allowed to read {table.name}. Its owner must run: GRANT USAGE ON SCHEMA "
                    f"{table.schema} TO {user}; GRANT SELECT ON {table.name} TO {user};"
                )

    async def slot(self, name: str) -> SlotFacts | None:
        """Returns the state of a slot, or None if it does not exist."""
        rows = await self.ask(
            "SELECT active, confirmed_flush_lsn::text, coalesce(wal_status = 'lost', false) FROM pg_replication_slots "
            "WHERE slot_name = %s",
            name,
        )
        if not rows:
            return None
        return SlotFacts(rows[0][0], parse_lsn(rows[0][1] or "0/0"), rows[0][2])

    async def ensure_publication(self, name: str, tables: Sequence[TableFacts], *, create: bool) -> None:
        """Creates the publication if it does not exist and `create` is true.

        Raises NeedsHelpError if the publication lacks a table, or does not exist and may not be created.
        """
        listed = ", ".join(f"{each.schema}.{each.table}" for each in tables)
        if not await self.ask("SELECT 1 FROM pg_publication WHERE pubname = %s", name):
            command = f"CREATE PUBLICATION {name} FOR TABLE {listed};"
            if not create:
                raise NeedsHelpError(f'there is no publication "{name}". The owner of the tables must run: {command}')
            await self._create_publication(name, tables, command)
            return
        rows = await self.ask("SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", name)
        published = {f"{schema}.{table}" for schema, table in rows}
        missing = ", ".join(each.name for each in tables if each.name not in published)
        if missing:
            raise NeedsHelpError(
                f'the publication "{name}" does not contain {missing}. Its owner must run: ALTER PUBLICATION '
                f"{name} ADD TABLE {missing};"
            )

    async def _create_publication(self, name: str, tables: Sequence[TableFacts], command: str) -> None:
        listed = SQL(", ").join(Identifier(each.schema, each.table) for each in tables)
        try:
            await self.connection.execute(SQL("CREATE PUBLICATION {} FOR TABLE {}").format(Identifier(name), listed))
        except psycopg.errors.InsufficientPrivilege as failure:
            raise NeedsHelpError(
                f"{user_of(self._url)} is not allowed to create a publication ({str(failure).strip()}). The "
                f"owner of the tables, or a superuser, must run: {command}"
            ) from failure
        except psycopg.Error as failure:
            raise explained(failure, self._url) from failure


def _table_facts(row: tuple[Any, ...]) -> TableFacts:
    return TableFacts(row[0], row[1], row[2], row[3], tuple(row[5]))


def _check_key(table: TableFacts) -> None:
    if not table.key_columns:
        raise NeedsHelpError(
            f"the table {table.name} has no primary key, so its rows cannot be identified. Run: ALTER TABLE "
            f"{table.name} ADD PRIMARY KEY (...); or, with a unique index over columns that are not null: "
            f"ALTER TABLE {table.name} REPLICA IDENTITY USING INDEX ...;"
        )
    if table.identity == "n":
        raise NeedsHelpError(
            f"the table {table.name} has REPLICA IDENTITY NOTHING, so PostgreSQL does not report which rows "
            f"change. Run: ALTER TABLE {table.name} REPLICA IDENTITY DEFAULT;"
        )


def _only_element(array: str | None) -> str | None:
    """Returns the element of a one-element array in text form; the catalog stores the default of older rows like
    this."""
    if array is None:
        return None
    inside = array[1:-1]
    if inside.startswith('"'):
        return inside[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return inside
