"""The tables that a sink writes to. They are created and altered to match the source, or compared with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import psycopg
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from ottla.connect.failures import NeedsHelpError

Schema = dict[str, Any]
"""A record of the schema topic: schema, table, key, and columns with name, type, number and missing."""


@dataclass(slots=True, eq=False)
class TargetTable:
    """A table of the target database."""

    schema: str
    table: str
    key: tuple[str, ...]
    types: dict[str, str]
    """The types of the target's columns, in PostgreSQL's notation."""
    statements: dict[Any, Any] = field(default_factory=dict)
    """A cache of statements and their encoders."""

    @property
    def name(self) -> str:
        """The name with its schema, without quotes."""
        return f"{self.schema}.{self.table}"


class TargetTables:
    """Opens target tables.

    With `applies_changes` it creates tables and adds and renames columns. Otherwise it raises NeedsHelpError with the
    commands to type.
    """

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], connector: str, schema: str | None, *, applies_changes: bool
    ) -> None:
        self._connection = connection
        self._connector = connector
        self._schema = schema
        self._applies = applies_changes
        self._known: dict[str, tuple[str, TargetTable]] = {}

    def get(self, source: str, schema_id: str) -> TargetTable | None:
        """Returns the open target of a source table, or None if it is not open with this schema."""
        known = self._known.get(source)
        return known[1] if known is not None and known[0] == schema_id else None

    async def open(self, schema_id: str, described: Schema) -> TargetTable:
        """Returns the target of a source table after applying the necessary schema changes."""
        source = f"{described['schema']}.{described['table']}"
        schema, table = self._schema or described["schema"], described["table"]
        types = await self._columns(schema, table)
        commands: list[Composed]
        if not types:
            commands = await self._create(schema, table, described)
        else:
            commands = await self._alter(schema, table, described, await self._last_schema(source), types)
        if commands:
            await self._change(source, commands, exists=bool(types))
            types = await self._columns(schema, table)
        await self._remember(source, described)
        target = TargetTable(schema, table, tuple(described["key"]), types)
        self._known[source] = (schema_id, target)
        return target

    async def _change(self, source: str, commands: list[Composed], *, exists: bool) -> None:
        if not self._applies:
            typed = " ".join(command.as_string(self._connection) + ";" for command in commands)
            what = "does not have the columns of the source" if exists else "does not exist"
            raise NeedsHelpError(f"the target of {source} {what}. Run: {typed} or use --apply-schema-changes")
        for command in commands:
            await self._connection.execute(command)

    async def _columns(self, schema: str, table: str) -> dict[str, str]:
        cursor = await self._connection.execute(
            "SELECT a.attname, format_type(a.atttypid, -1) FROM pg_attribute a JOIN pg_class c ON "
            "c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            [schema, table],
        )
        return dict(await cursor.fetchall())

    async def _create(self, schema: str, table: str, described: Schema) -> list[Composed]:
        columns = [
            SQL("{} {}").format(Identifier(each["name"]), await self._type(each["type"]))
            for each in described["columns"]
        ]
        keys = SQL(", ").join(map(Identifier, described["key"]))
        return [
            SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(schema)),
            SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(
                Identifier(schema, table), SQL(", ").join(columns), keys
            ),
        ]

    async def _alter(
        self, schema: str, table: str, described: Schema, last: Schema | None, types: dict[str, str]
    ) -> list[Composed]:
        """Returns the commands that add and rename columns.

        A new column that has the number of a missing one was renamed; any other new column was added.
        """
        target = Identifier(schema, table)
        names = {each["name"] for each in described["columns"]}
        gone = {
            each["name"]: each["number"]
            for each in (last or {}).get("columns", [])
            if each["name"] not in names and each["name"] in types
        }
        commands: list[Composed] = []
        for each in described["columns"]:
            name, number = each["name"], each["number"]
            if name in types:
                continue
            if gone and (number is None or None in gone.values()):
                raise NeedsHelpError(_what_happened(schema, table, name, list(gone)))
            old = next((former for former, its in gone.items() if its == number), None)
            if old is not None:
                rename = SQL("ALTER TABLE {} RENAME COLUMN {} TO {}")
                commands.append(rename.format(target, Identifier(old), Identifier(name)))
                del gone[old]
                continue
            commands += await self._add(target, each)
        return commands

    async def _add(self, target: Identifier, column: dict[str, Any]) -> list[Composed]:
        """Adds a column. Existing rows get the value that the source's rows got."""
        name, kind = Identifier(column["name"]), await self._type(column["type"])
        if column["missing"] is None:
            return [SQL("ALTER TABLE {} ADD COLUMN {} {}").format(target, name, kind)]
        return [
            SQL("ALTER TABLE {} ADD COLUMN {} {} DEFAULT {}").format(target, name, kind, Literal(column["missing"])),
            SQL("ALTER TABLE {} ALTER COLUMN {} DROP DEFAULT").format(target, name),
        ]

    async def _type(self, name: str) -> Composable:
        """Returns the source's type, or text if this database does not know it."""
        cursor = await self._connection.execute("SELECT to_regtype(%s) IS NOT NULL", [name])
        row = await cursor.fetchone()
        if row is not None and row[0]:
            # PostgreSQL has just parsed the whole string as one type, so it cannot inject anything, whoever wrote to
            # the topic.
            return SQL(name)
        return SQL("text[]") if name.endswith("[]") else SQL("text")

    async def _last_schema(self, source: str) -> Schema | None:
        cursor = await self._connection.execute(
            "SELECT described FROM ottla_connect.schemas WHERE connector = %s AND source = %s",
            [self._connector, source],
        )
        row = await cursor.fetchone()
        return None if row is None else row[0]

    async def _remember(self, source: str, described: Schema) -> None:
        await self._connection.execute(
            "INSERT INTO ottla_connect.schemas VALUES (%s, %s, %s) ON CONFLICT (connector, source) "
            "DO UPDATE SET described = excluded.described",
            [self._connector, source, orjson.dumps(described).decode()],
        )


def _what_happened(schema: str, table: str, name: str, gone: list[str]) -> str:
    others = ", ".join(gone)
    return (
        f"{schema}.{table} has a new column {name} in the source, and {others} is missing there: it is unknown "
        f"whether the column was renamed or added. If it was renamed, run: ALTER TABLE {schema}.{table} RENAME "
        f"COLUMN {gone[0]} TO {name}; if it was added, run: ALTER TABLE {schema}.{table} ADD COLUMN {name} "
        "...; then restart"
    )
