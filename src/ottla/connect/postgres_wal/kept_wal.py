"""WAL that a restored server keeps until its connector comes: `wal_keep_size` is raised, and set back afterwards.

A restored server has no slot, so any checkpoint could remove WAL that the log lacks. `ottla restore postgres` raises
the setting in postgresql.auto.conf and notes there what it was, under a name of ours that PostgreSQL takes for a
setting. The connector sets it back with ALTER SYSTEM once its slot holds the WAL.
"""

from __future__ import annotations

import contextlib
import re

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ottla.connect.postgres_wal.failures import PostgresError, UnreachableError

SETTING = "wal_keep_size"
BEFORE = "ottla.wal_keep_size_before"
NOT_SET = "default"
"""What BEFORE says if the setting was not in postgresql.auto.conf."""
KEPT_BYTES = 1 << 30
KEPT = "1GB"
"""KEPT_BYTES as SHOW prints it."""
CONNECT_TIMEOUT_S = 15
_LINE = r"(?m)^\s*{name}\s*=\s*'((?:[^']|'')*)'"


def settings_of_restored(auto_conf: str, effective_bytes: int) -> dict[str, str]:
    """What to write into postgresql.auto.conf; nothing if the server keeps as much anyhow. `effective_bytes` is the
    setting of the server that was backed up."""
    before = _value(auto_conf, BEFORE)  # the backup is of a server whose connector had not come yet
    if before is None:
        if effective_bytes >= KEPT_BYTES:
            return {}
        before = _value(auto_conf, SETTING) or NOT_SET
    return {SETTING: f"{KEPT_BYTES >> 20}MB", BEFORE: before}


def _value(auto_conf: str, name: str) -> str | None:
    found = re.findall(_LINE.format(name=re.escape(name)), auto_conf)
    return found[-1].replace("''", "'") if found else None


def command_of(before: str) -> str:
    return f"ALTER SYSTEM RESET {SETTING}" if before == NOT_SET else f"ALTER SYSTEM SET {SETTING} = '{before}'"


async def set_back(dsn: str, before: str) -> None:
    """Over a connection of its own: one that replicates takes no such command. Raises PostgresError with advice."""
    database = str(conninfo_to_dict(dsn).get("dbname") or "postgres")
    conninfo = make_conninfo(dsn, dbname=database, application_name="ottla settings", connect_timeout=CONNECT_TIMEOUT_S)
    try:
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            if before == NOT_SET:
                await connection.execute(f"ALTER SYSTEM RESET {SETTING}")
            else:
                await connection.execute(sql.SQL("ALTER SYSTEM SET wal_keep_size = {}").format(sql.Literal(before)))
            await connection.execute("SELECT pg_reload_conf()")
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):  # without effect once the setting is back
                await connection.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(*BEFORE.split("."))))
                await connection.execute("SELECT pg_reload_conf()")
    except psycopg.errors.InsufficientPrivilege as refused:
        raise PostgresError(_advice(dsn, before, str(refused))) from refused
    except psycopg.errors.OperationalError as failure:
        raise UnreachableError(_advice(dsn, before, str(failure))) from failure


def _advice(dsn: str, before: str, why: str) -> str:
    user = conninfo_to_dict(dsn).get("user") or "the connector's user"
    reason = " ".join(why.split())
    return (
        f"the server still keeps {KEPT} of WAL ({SETTING}), as `ottla restore postgres` set it up, and this connector "
        f'could not set it back ({reason}). A superuser types: psql -c "{command_of(before)}" '
        f"-c 'SELECT pg_reload_conf()'. To let the connector do so: GRANT ALTER SYSTEM ON PARAMETER {SETTING} TO "
        f'"{user}"; GRANT EXECUTE ON FUNCTION pg_reload_conf() TO "{user}"'
    )
