"""Raises `wal_keep_size` on a restored server until its connector streams, and then resets it.

A restored server has no slot, so any checkpoint could remove WAL that the log lacks. `ottla restore postgres` raises
the setting in postgresql.auto.conf and records the old value there, under a name of its own that PostgreSQL accepts as
a custom setting. The connector restores the old value with ALTER SYSTEM once its slot holds the WAL.
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
"""The value of BEFORE if the setting was not in postgresql.auto.conf."""
KEPT_BYTES = 1 << 30
KEPT = "1GB"
"""KEPT_BYTES as SHOW prints it."""
CONNECT_TIMEOUT_S = 15
_LINE = r"(?m)^\s*{name}\s*=\s*'((?:[^']|'')*)'"


def settings_of_restored(auto_conf: str, effective_bytes: int) -> dict[str, str]:
    """Returns the settings to write to postgresql.auto.conf; none if the server already keeps enough WAL.

    `effective_bytes` is the setting of the server that was backed up.
    """
    before = _value(auto_conf, BEFORE)  # the backup is of a restored server whose connector had not started yet
    if before is None:
        if effective_bytes >= KEPT_BYTES:
            return {}
        before = _value(auto_conf, SETTING) or NOT_SET
    return {SETTING: f"{KEPT_BYTES >> 20}MB", BEFORE: before}


def _value(auto_conf: str, name: str) -> str | None:
    found = re.findall(_LINE.format(name=re.escape(name)), auto_conf)
    return found[-1].replace("''", "'") if found else None


def command_of(before: str) -> str:
    """Returns the command that restores the old value."""
    return f"ALTER SYSTEM RESET {SETTING}" if before == NOT_SET else f"ALTER SYSTEM SET {SETTING} = '{before}'"


async def set_back(dsn: str, before: str) -> None:
    """Restores the old value of the setting. Raises PostgresError with advice.

    Uses a connection of its own, because a replication connection does not accept ALTER SYSTEM.
    """
    database = str(conninfo_to_dict(dsn).get("dbname") or "postgres")
    conninfo = make_conninfo(dsn, dbname=database, application_name="ottla settings", connect_timeout=CONNECT_TIMEOUT_S)
    try:
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
            if before == NOT_SET:
                await connection.execute(f"ALTER SYSTEM RESET {SETTING}")
            else:
                await connection.execute(sql.SQL("ALTER SYSTEM SET wal_keep_size = {}").format(sql.Literal(before)))
            await connection.execute("SELECT pg_reload_conf()")
            # The note is harmless if it stays, once the setting is restored.
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
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
        f"the server still keeps {KEPT} of WAL ({SETTING}), as `ottla restore postgres` set it, and this connector "
        f'could not reset it ({reason}). A superuser must run: psql -c "{command_of(before)}" '
        f"-c 'SELECT pg_reload_conf()'. To let the connector do so: GRANT ALTER SYSTEM ON PARAMETER {SETTING} TO "
        f'"{user}"; GRANT EXECUTE ON FUNCTION pg_reload_conf() TO "{user}"'
    )
