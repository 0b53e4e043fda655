"""Errors of a PostgreSQL server, translated into sentences that tell the operator what to type.

The error of a command carries an SQLSTATE, which decides how it is classified. For an error during connection, libpq
gives only the text, so an unknown text is treated as temporary (the server is starting, recovering or shutting down).
The connector retries both classes; commands that run once print the sentence and exit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


class PostgresError(Exception):
    """A problem with the server or its WAL. The message tells the operator what to type."""


class UnreachableError(PostgresError):
    """The server does not respond now. Retry."""


class LogChangedError(PostgresError):
    """Another writer appended to the log since it was last read. Read it again."""


class RefusedError(PostgresError):
    """An operator has to change something: on the server, in the log, or in the options."""


class InvalidSettingsError(RefusedError):
    """The options can never work, with any server or log. This is the only reason to exit at startup."""


class TakenOverError(RefusedError):
    """Another connector is now the log's writer."""


class SlotInUseError(RefusedError):
    """Another connector uses the slot, or the server has not yet noticed that it is gone."""


class WalGoneError(RefusedError):
    """The server has removed WAL that the log does not have."""


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """The user, server and slot of a connection, for use in messages."""

    user: str
    host: str
    port: str
    slot: str = "ottla"

    @property
    def place(self) -> str:
        """The host and port, or the socket directory, as messages name them."""
        return f"{self.host}:{self.port}" if not self.host.startswith("/") else f"{self.host} (port {self.port})"


_Sentence = Callable[[re.Match[str], ConnectionTarget], str]

RELOAD = "psql -c 'SELECT pg_reload_conf()'"


def _hba_line(found: re.Match[str], asked: ConnectionTarget) -> str:
    local = found.group(1) == "[local]"
    kind = "local replication" if local else "host  replication"
    where = "" if local else f"  {found.group(1)}/{'128' if ':' in found.group(1) else '32'}"
    return (
        f"pg_hba.conf of the server has no line for a replication connection of {asked.user!r}. Add this line "
        f'(psql -c "SHOW hba_file" shows the path):\n\n    {kind}  {asked.user}{where}  scram-sha-256\n\nand '
        f"reload it: {RELOAD}"
    )


def _wal_senders(found: re.Match[str], asked: ConnectionTarget) -> str:
    if found.group(1) == "0":
        return (
            "the server does not send WAL (max_wal_senders is 0, as wal_level=minimal requires). Run this, "
            "and then restart the server:\n\n    psql -c \"ALTER SYSTEM SET wal_level = 'replica'\" "
            '-c "ALTER SYSTEM SET max_wal_senders = 10"'
        )
    return (
        f"all {found.group(1)} replication connections are in use. List them: psql -c 'SELECT pid, "
        "application_name, client_addr FROM pg_stat_replication'; or raise the limit and restart the server: "
        f'psql -c "ALTER SYSTEM SET max_wal_senders = {int(found.group(1)) + 5}"'
    )


_CONNECTING: tuple[tuple[str, _Sentence], ...] = (
    (
        r"password authentication failed for user",
        lambda found, asked: (
            f"the password of {asked.user!r} is wrong. Set the right one in PGPASSWORD or ~/.pgpass, or set a "
            f"new one: psql -c '\\password {asked.user}'"
        ),
    ),
    (
        r"no password supplied",
        lambda found, asked: (
            f"the server requires a password for {asked.user!r}. Set it in PGPASSWORD or in a line of "
            f"~/.pgpass: {asked.host}:{asked.port}:*:{asked.user}:PASSWORD"
        ),
    ),
    (
        r"must be superuser or replication role|[Pp]ermission denied to start WAL sender",
        lambda found, asked: (
            f"{asked.user!r} is not allowed to read the server's WAL. Grant it: psql -c 'ALTER ROLE "
            f'"{asked.user}" REPLICATION\''
        ),
    ),
    (r'no pg_hba\.conf entry for replication connection from (?:host )?"?([^",]+)"?', _hba_line),
    (
        r"pg_hba\.conf rejects replication connection",
        lambda found, asked: (
            f"a line of the server's pg_hba.conf rejects replication connections of {asked.user!r}. The first "
            f"matching line decides: put one that allows it above, and reload the file: {RELOAD}"
        ),
    ),
    (
        r'role "[^"]*" does not exist',
        lambda found, asked: (
            f'the user {asked.user!r} does not exist. Create it: psql -c \'CREATE ROLE "{asked.user}" LOGIN '
            f"REPLICATION' -c '\\password {asked.user}'"
        ),
    ),
    (
        r'role "[^"]*" is not permitted to log in',
        lambda found, asked: (
            f"{asked.user!r} is not allowed to log in. Allow it: psql -c 'ALTER ROLE \"{asked.user}\" LOGIN'"
        ),
    ),
    (r"exceeds max_wal_senders \(currently (\d+)\)", _wal_senders),
)

_COMMANDS: tuple[tuple[str, _Sentence], ...] = (
    (
        r"all replication slots are in use|can only be used if max_replication_slots > 0",
        lambda found, asked: (
            "the server has no free replication slot. Find an unused one: psql -c 'SELECT slot_name, "
            "active, restart_lsn FROM pg_replication_slots', and drop it: psql -c \"SELECT "
            "pg_drop_replication_slot('NAME')\"; or "
            'raise the limit and restart the server: psql -c "ALTER SYSTEM SET max_replication_slots = 10"'
        ),
    ),
    (
        r"cannot use a logical replication slot for physical replication|cannot read.*logical replication slot",
        lambda found, asked: f"the slot {asked.slot!r} is a logical slot. Choose another one with --slot NAME",
    ),
)

_IN_USE = re.compile(r'replication slot "([^"]+)" is active for PID (\d+)')
_GONE = re.compile(r"has already been removed|can no longer get changes from replication slot|has been invalidated")
_OBJECT_IN_USE = "55006"
_UNDEFINED_FILE = "58P01"
_PASSING_CLASSES = ("08", "40", "53", "57", "58")
"""SQLSTATE classes: connection, rollback, insufficient resources, operator intervention, system error."""


def connecting_failed(text: str, asked: ConnectionTarget) -> PostgresError:
    """Returns the error for a failed connection: RefusedError with advice, or UnreachableError."""
    text = text.strip()
    for pattern, sentence in _CONNECTING:
        if (found := re.search(pattern, text)) is not None:
            return RefusedError(sentence(found, asked))
    if "FATAL:" in text:
        return UnreachableError(
            f"the server at {asked.place} does not accept connections at the moment: {_short(text)}"
        )
    return UnreachableError(f"cannot connect to PostgreSQL at {asked.place}: {_short(text)}")


def command_failed(text: str, asked: ConnectionTarget, sqlstate: str | None = None) -> PostgresError:
    """Returns the error for a replication command that the server rejected."""
    text = text.strip()
    if sqlstate == _UNDEFINED_FILE or _GONE.search(text):
        return WalGoneError(_short(text))
    found = _IN_USE.search(text)
    if sqlstate == _OBJECT_IN_USE or found is not None:
        slot, holder = (asked.slot, "") if found is None else (found[1], f" (by the server's process {found[2]})")
        return SlotInUseError(
            f"the slot {slot!r} is in use{holder}: another connector is running with this name. One is enough; "
            "for a second log, choose another slot with --slot"
        )
    for pattern, sentence in _COMMANDS:
        if (found := re.search(pattern, text)) is not None:
            return RefusedError(sentence(found, asked))
    if sqlstate is None or sqlstate[:2] in _PASSING_CLASSES:
        return UnreachableError(f"error from the server at {asked.place}: {_short(text)}")
    return RefusedError(f"error from the server at {asked.place}: {_short(text)}")


def stream_failed(text: str, sqlstate: str | None = None) -> PostgresError:
    """Returns the error for a stream that broke after it had started."""
    text = _short(text)
    if sqlstate == _UNDEFINED_FILE or _GONE.search(text):
        return WalGoneError(text)
    return UnreachableError(f"the connection to the server was lost: {text}")


def _short(text: str) -> str:
    """Collapses whitespace to fit the text on one line."""
    return " ".join(text.split())
