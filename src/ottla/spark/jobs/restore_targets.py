"""Writes a restored table to Parquet, CSV, SQLite or PostgreSQL, completely or not at all."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.archive.failures import PipelineError
from ottla.file_sync import sync_directory, sync_path
from ottla.spark.jobs import restore_postgres
from ottla.spark.jobs.changes import STATE_COLUMNS, distinct_names

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("parquet", "csv", "sqlite")
DEFAULT_KEY_COLUMN = "_key"
REPLACED_SUFFIX = ".ottla-replaced"
"""Suffix of a directory that is being replaced. After a crash it holds the old table until the next restore."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to write a restored table."""

    kind: str
    path: str
    """The path of a file or directory, or the address of a PostgreSQL database."""
    table: str
    """The table in a database."""

    @property
    def shown(self) -> str:
        """The target without a password, for messages."""
        if self.kind == "postgresql":
            return f"{restore_postgres.without_password(self.path)}#{self.table}"
        return self.path


def parse_target(text: str, default_table: str) -> Target:
    """Parses `parquet:DIR`, `csv:FILE`, `sqlite:FILE`, `sqlite:FILE#TABLE` or `postgresql://...#TABLE`.

    Without a prefix, the file extension decides. Raises PipelineError if it is none of these.
    """
    if text.startswith(restore_postgres.SCHEMES):
        return Target("postgresql", *restore_postgres.split_url(text, default_table))
    kind, colon, path = text.partition(":")
    if not colon or kind not in KINDS:
        endings = {".parquet": "parquet", ".csv": "csv", ".sqlite": "sqlite", ".db": "sqlite"}
        kind, path = endings.get(Path(text.partition("#")[0]).suffix, ""), text
    if not kind or not path:
        raise PipelineError(
            f'"{text}" is not a restore target; use parquet:DIR, csv:FILE, sqlite:FILE, sqlite:FILE#TABLE or '
            "postgresql://user@host/database#table"
        )
    table = default_table
    if kind == "sqlite" and "#" in path:
        path, _, table = path.partition("#")
    return Target(kind, path, table)


def check_is_free(target: Target, *, overwrite: bool) -> None:
    """Raises PipelineError if the target exists and may not be overwritten.

    If a crash interrupted the replacement of the target, the old table is put back first.
    """
    if target.kind == "postgresql":
        # Always connect: an unreachable server should be known before hours of work, not after.
        if restore_postgres.has_table(target.path, target.table) and not overwrite:
            raise PipelineError(f"{target.shown} already exists; --overwrite replaces it")
        return
    if target.kind != "sqlite":
        _undo_replacement(target.path)
    if overwrite or not os.path.exists(target.path):
        return
    if target.kind != "sqlite":
        raise PipelineError(f"{target.path} already exists; --overwrite replaces it")
    with contextlib.closing(sqlite3.connect(target.path)) as database:
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [target.table]).fetchone():
            raise PipelineError(f"{target.path} already has a table {target.table}; --overwrite replaces it")


def table_for_output(rows: DataFrame, *, key_column: str = DEFAULT_KEY_COLUMN, with_origin: bool = False) -> DataFrame:
    """Returns the key and then the fields of the values. A field named like the key column is used as the key, with its
    type.

    `with_origin` adds partition, offset and timestamp of the change that each row comes from.
    """
    from pyspark.sql import functions as sf

    fields = [name for name in rows.columns if name not in STATE_COLUMNS]
    origin = STATE_COLUMNS[1:4] if with_origin else []
    named = [name for name in fields if name.lower() == key_column.lower()]
    key = sf.col(f"`{named[0]}`") if named else sf.col(DEFAULT_KEY_COLUMN)
    rest = distinct_names([name for name in fields if name not in named], taken=[key_column, *origin])
    quoted = [sf.col("`" + name.replace("`", "``") + "`") for name in rest]
    return rows.select(key.alias(key_column), *quoted, *origin)


def write_output(rows: DataFrame, target: Target, *, overwrite: bool = False) -> None:
    """Writes the rows. Raises PipelineError if the target exists."""
    check_is_free(target, overwrite=overwrite)
    parent = None if target.kind == "postgresql" else os.path.dirname(os.path.abspath(target.path))
    if parent is not None:
        os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=parent) as temporary:
        staged = os.path.join(temporary, "rows")
        with _instants_with_a_zone(rows.sparkSession):
            rows.write.parquet(f"file://{staged}")
        if target.kind == "parquet":
            _replace(staged, target.path)
        elif target.kind == "csv":
            whole = os.path.join(temporary, "rows.csv")
            _write_csv(staged, whole)
            _replace(whole, target.path)
        elif target.kind == "postgresql":
            restore_postgres.write_table(target.path, target.table, *_batches(staged), overwrite=overwrite)
        else:
            _write_sqlite(staged, target)


@contextlib.contextmanager
def _instants_with_a_zone(spark: SparkSession) -> Iterator[None]:
    """Writes timestamps with their time zone. By default Spark writes INT96, which does not tell other readers that it
    is UTC."""
    name = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(name) or "INT96"
    spark.conf.set(name, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _replace(staged: str, path: str) -> None:
    """Moves the staged file or directory to the path.

    A rename cannot replace a directory that has files. An old directory is renamed first and moved next to the staged
    files last, to be deleted with them, so that a crash leaves the whole old table, the whole new one, or both.
    """
    path, discarded = os.path.abspath(path), os.path.dirname(staged)
    for file in [staged, *(str(each) for each in Path(staged).rglob("*"))] if os.path.isdir(staged) else [staged]:
        sync_path(file)
    old = path + REPLACED_SUFFIX
    if os.path.isdir(path) and not os.path.islink(path):
        if os.path.exists(old):  # a crash came before the last step
            os.rename(old, os.path.join(discarded, "leftover"))
        os.rename(path, old)
    try:
        os.replace(staged, path)
    except OSError:
        _undo_replacement(path)
        raise
    sync_directory(os.path.dirname(path))
    if os.path.exists(old):
        os.rename(old, os.path.join(discarded, "replaced"))


def _undo_replacement(path: str) -> None:
    """Puts the old directory back if the new one is not in place."""
    path = os.path.abspath(path)
    old = path + REPLACED_SUFFIX
    if os.path.exists(old) and not os.path.lexists(path):
        os.rename(old, path)
        sync_directory(os.path.dirname(path))


def _batches(directory: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    from pyarrow import dataset

    found = dataset.dataset(directory, format="parquet")
    return found.schema, found.to_batches()


def _write_csv(staged: str, path: str) -> None:
    from pyarrow import csv

    schema, batches = _batches(staged)
    with csv.CSVWriter(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_sqlite(staged: str, target: Target) -> None:
    """Writes the table in one transaction."""
    schema, batches = _batches(staged)
    table = _quoted(target.table)
    columns = ", ".join(f"{_quoted(each.name)} {_sqlite_type(each.type)}" for each in schema)
    places = ", ".join("?" for _ in schema)
    with contextlib.closing(sqlite3.connect(target.path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        try:
            database.execute(f"DROP TABLE IF EXISTS {table}")
            database.execute(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({_quoted(schema[0].name)}))")
            for batch in batches:
                rows = zip(*(_sqlite_values(column) for column in batch.columns), strict=True)
                database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise


def _sqlite_type(kind: pa.DataType) -> str:
    import pyarrow.types as types

    if types.is_integer(kind) or types.is_boolean(kind):
        return "INTEGER"
    return "REAL" if types.is_floating(kind) else "TEXT"


def _sqlite_values(column: pa.Array) -> list[Any]:
    """Converts decimals and timestamps, which SQLite does not have, to text."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_decimal(column.type) or types.is_temporal(column.type):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    return values


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
