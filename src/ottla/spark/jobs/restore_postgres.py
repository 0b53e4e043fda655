r"""Writes a restored table to PostgreSQL in one transaction: readers see either the old table or the restored one.

The rows are copied to a hidden table, which is then renamed. A rollback leaves nothing behind.

Values are sent in COPY's text format, in which a backslash has only one meaning. In CSV, a line of a value that is just
`\.` would end the copy, and the rest would be lost silently.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ottla.archive.failures import PipelineError

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg.sql import Composed

SCHEMES = ("postgresql://", "postgres://")
NAME_BYTES_MAX = 63
"""PostgreSQL truncates longer names, so two of them could become one."""
CONNECT_TIMEOUT_S = 10
_ESCAPES = [("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")]
_NULL = "\\N"


def split_url(text: str, default_table: str) -> tuple[str, str]:
    """Splits `postgresql://host/database#table` into the address and the table; `#schema.table` also names a schema."""
    url, _, fragment = text.partition("#")
    table = fragment or default_table.replace(".", "_")
    if url in SCHEMES or not all(table.split(".")):
        raise PipelineError(f'"{without_password(text)}" is not a table address: postgresql://user@host/database#table')
    for name in table.split("."):
        _check_name(name)
    return url, table


def without_password(url: str) -> str:
    """Hides the password in a connection string, so that it can be shown."""
    return re.sub(r"^(\w+://[^:@/?#]*):[^/?#]*@|([?&]password=)[^&#]*", _hidden, url)


def _hidden(found: re.Match[str]) -> str:
    return f"{found[1]}:***@" if found[1] else f"{found[2]}***"


def has_table(url: str, table: str) -> bool:
    """Returns whether the table, which may be named with its schema, exists in the database."""
    with _connected(url) as connection:
        found = connection.execute("SELECT to_regclass(%s)", [_named(table).as_string(connection)]).fetchone()
    return found is not None and found[0] is not None


def write_table(
    url: str, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, overwrite: bool = False
) -> None:
    """Writes a table whose primary key is the first column. Raises PipelineError if PostgreSQL rejects something; then
    nothing has changed."""
    from psycopg.sql import SQL, Identifier

    for column in schema:
        _check_name(column.name)
    *schema_name, last = table.split(".")
    hidden = ".".join([*schema_name, f"ottla_restore_{uuid.uuid4().hex}"])
    columns = SQL(", ").join(
        SQL("{} {}").format(Identifier(column.name), SQL(column_type(column.type))) for column in schema
    )
    with _connected(url) as connection, connection.transaction():
        connection.execute("SET LOCAL client_encoding TO 'UTF8'")
        connection.execute(SQL("CREATE TABLE {} ({})").format(_named(hidden), columns))
        _copy(connection, SQL("COPY {} FROM STDIN").format(_named(hidden)), batches)
        connection.execute(
            SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(_named(hidden), Identifier(schema[0].name))
        )
        if overwrite:
            connection.execute(SQL("DROP TABLE IF EXISTS {}").format(_named(table)))
        connection.execute(SQL("ALTER TABLE {} RENAME TO {}").format(_named(hidden), Identifier(last)))


def _copy(connection: psycopg.Connection[Any], statement: Composed, batches: Iterable[pa.RecordBatch]) -> None:
    sent = 0
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for batch in batches:
                if batch.num_rows:
                    copy.write(copy_text(batch))
                    sent += batch.num_rows
        if cursor.rowcount != sent:
            raise PipelineError(f"PostgreSQL accepted only {cursor.rowcount} of {sent} rows; nothing was changed")


def column_type(kind: pa.DataType) -> str:
    """Returns the PostgreSQL type for an Arrow type; TEXT if there is no better one."""
    import pyarrow.types as types

    if types.is_decimal(kind):
        return f"NUMERIC({kind.precision}, {kind.scale})"
    if types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz is None else "TIMESTAMPTZ"
    named = [
        (types.is_boolean, "BOOLEAN"),
        (types.is_integer, "BIGINT"),
        (types.is_floating, "DOUBLE PRECISION"),
        (types.is_date, "DATE"),
        (types.is_binary, "BYTEA"),
        (types.is_nested, "JSONB"),
    ]
    return next((name for is_kind, name in named if is_kind(kind)), "TEXT")


def copy_text(batch: pa.RecordBatch) -> bytes:
    """Formats rows in COPY's text format, column by column. Pure."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [pc.fill_null(_as_text(column), _NULL) for column in batch.columns]
    lines = pc.binary_join_element_wise(*columns, pa.scalar("\t"))
    return ("\n".join(lines.to_pylist()) + "\n").encode()


def _as_text(column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    if types.is_binary(column.type):
        return pa.array([None if value is None else f"\\\\x{value.hex()}" for value in column.to_pylist()], pa.string())
    if types.is_nested(column.type):
        values = [None if value is None else json.dumps(value, default=str) for value in column.to_pylist()]
        column = pa.array(values, pa.string())
    text = column.cast(pa.string())
    if types.is_string(column.type) or types.is_large_string(column.type):
        for plain, escaped in _ESCAPES:
            text = pc.replace_substring(text, plain, escaped)
    return text


def _named(table: str) -> Any:
    from psycopg.sql import Identifier

    return Identifier(*table.split("."))


def _check_name(name: str) -> None:
    if len(name.encode()) > NAME_BYTES_MAX:
        raise PipelineError(f'"{name}" is longer than the {NAME_BYTES_MAX} bytes that PostgreSQL allows for a name')


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Connects. Raises PipelineError for any error of PostgreSQL or of the connection."""
    try:
        import psycopg
    except ImportError as missing:
        raise PipelineError(
            f"restoring into PostgreSQL needs psycopg: pip install 'ottla[postgres]' ({missing})"
        ) from missing
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S, application_name="ottla restore") as connection:
            yield connection
    except psycopg.Error as failure:
        said = " ".join(str(failure).split())
        raise PipelineError(f"PostgreSQL ({without_password(url)}): {said}. Nothing was changed") from failure
