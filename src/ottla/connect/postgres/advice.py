"""Explains PostgreSQL's errors and tells the operator what to type."""

from __future__ import annotations

import re
from collections.abc import Callable

from ottla.connect.failures import ConnectorError, NeedsHelpError

Advice = Callable[[str, str], str]


def without_password(url: str) -> str:
    """Hides the password in a connection string, so that it can be shown."""
    hidden = re.sub(r"^(\w+://[^:@/?#]*):[^/?#]*@", r"\1:***@", url)
    return re.sub(r"(password\s*=\s*)('[^']*'|[^&\s#]*)", r"\1***", hidden)


def user_of(url: str) -> str:
    """Returns the user of a connection string."""
    from psycopg.conninfo import conninfo_to_dict

    return str(conninfo_to_dict(url).get("user") or "the user")


def explained(failure: Exception, url: str) -> ConnectorError:
    """Returns NeedsHelpError if only an operator can fix the failure, otherwise ConnectorError, which is retried."""
    said = " ".join(str(failure).split())
    where = f"PostgreSQL ({without_password(url)})"
    state = _sqlstate(failure)
    for states, pattern, advice in _ADVICE:
        if (state is not None and state in states) or (pattern and re.search(pattern, said)):
            return NeedsHelpError(f"{where}: {said}. {advice(user_of(url), said)}")
    return ConnectorError(f"{where}: {said}")


def _sqlstate(failure: Exception) -> str | None:
    state: str | None = getattr(failure, "sqlstate", None)
    return state


def _password(user: str, _: str) -> str:
    return (
        "Set the right password in the address, PGPASSWORD or ~/.pgpass; a superuser sets a new one with: "
        f"ALTER ROLE {user} PASSWORD '...';"
    )


def _hba(user: str, _: str) -> str:
    return (
        f"Add a line to pg_hba.conf, such as: host all {user} 0.0.0.0/0 scram-sha-256 (for the write-ahead log as "
        f"files: host replication {user} ...), then: SELECT pg_reload_conf();"
    )


def _replication_role(user: str, _: str) -> str:
    return f"Grant it the replication right: ALTER ROLE {user} REPLICATION;"


def _wal_level(_: str, __: str) -> str:
    return "Run: ALTER SYSTEM SET wal_level = logical; and restart PostgreSQL"


def _slots(_: str, __: str) -> str:
    return (
        "List them: SELECT slot_name, active, restart_lsn FROM pg_replication_slots; drop an unused one: "
        "SELECT pg_drop_replication_slot('NAME'); or allow more: ALTER SYSTEM SET max_replication_slots = 20; "
        "and restart PostgreSQL"
    )


def _senders(_: str, __: str) -> str:
    return "Allow more of them: ALTER SYSTEM SET max_wal_senders = 20; and restart PostgreSQL"


def _grant(user: str, said: str) -> str:
    found = re.search(r"permission denied for (table|relation|schema|database|view) (\S+)", said)
    if found is None:
        return f"Its owner or a superuser can grant the right: GRANT ... TO {user};"
    kind, name = found[1], found[2]
    right = {"schema": "USAGE, CREATE", "database": "CREATE"}.get(kind, "SELECT, INSERT, UPDATE, DELETE, TRUNCATE")
    of = {"schema": "SCHEMA ", "database": "DATABASE "}.get(kind, "")
    return f"Grant the right: GRANT {right} ON {of}{name} TO {user};"


def _no_database(_: str, __: str) -> str:
    return "Choose an existing one (psql -l lists them), or create it: CREATE DATABASE ...;"


def _no_role(user: str, _: str) -> str:
    return f"Create it: CREATE ROLE {user} LOGIN REPLICATION PASSWORD '...';"


_ADVICE: list[tuple[frozenset[str], str, Advice]] = [
    (frozenset({"28P01"}), r"password authentication failed|no password supplied", _password),
    (frozenset(), r"no pg_hba\.conf entry|pg_hba\.conf rejects", _hba),
    (frozenset(), r'role "[^"]*" does not exist', _no_role),
    (frozenset({"3D000"}), r'database "[^"]*" does not exist', _no_database),
    (frozenset(), r"wal_level", _wal_level),
    (frozenset(), r"replication slots are in use", _slots),
    (frozenset(), r"max_wal_senders", _senders),
    (
        frozenset(),
        r"replication role|REPLICATION attribute|to use replication slots|to start WAL sender",
        _replication_role,
    ),
    (frozenset({"42501"}), r"permission denied", _grant),
]
