"""A PostgreSQL server on a replication connection: its identity, settings, slots, timelines and WAL stream."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from psycopg import ProgrammingError, pq
from psycopg.conninfo import make_conninfo

from ottla.connect.postgres import replication
from ottla.connect.postgres.replication import Keepalive, ReplicationConnection, WalData, quoted
from ottla.connect.postgres_wal.failures import (
    ConnectionTarget,
    InvalidSettingsError,
    PostgresError,
    RefusedError,
    UnreachableError,
    command_failed,
    connecting_failed,
    stream_failed,
)
from ottla.connect.postgres_wal.positions import NO_LSN, Lsn, TimelineId, parse_lsn

VERSION_MIN = 15
APPLICATION_NAME = "ottla"


@dataclass(frozen=True, slots=True)
class Identity:
    """The server's identity and current position."""

    system_id: int
    timeline: TimelineId
    flushed: Lsn


@dataclass(frozen=True, slots=True)
class Slot:
    """A physical replication slot."""

    restart_lsn: Lsn | None  # None: nothing is reserved yet, or the server has invalidated the slot


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The server ended the stream because it shuts down, or because its history continues on another timeline."""

    next_timeline: TimelineId | None = None
    next_start: Lsn = NO_LSN


class Server:
    """A replication connection. Commands run one at a time; after `start` it only streams."""

    def __init__(self, connection: ReplicationConnection, asked: ConnectionTarget) -> None:
        self._connection = connection
        self._asked = asked

    @classmethod
    async def connect(cls, dsn: str, *, application_name: str = APPLICATION_NAME, slot: str = "ottla") -> Self:
        """Connects. Raises InvalidSettingsError if the address cannot be parsed, otherwise UnreachableError or
        RefusedError."""
        try:
            conninfo = make_conninfo(dsn, application_name=application_name)
        except ProgrammingError as failure:
            raise InvalidSettingsError(
                f"{failure}".strip() + "; an address has the form postgresql://user@host:5432/"
            ) from None
        asked = _asked(conninfo, slot)
        try:
            connection = await replication.ReplicationConnection.connect(conninfo, physical=True)
        except replication.RefusedError as failure:
            raise connecting_failed(str(failure), asked) from None
        server = cls(connection, asked)
        try:
            cls.check_version(server.version)
        except RefusedError:
            await server.close()
            raise
        return server

    @staticmethod
    def check_version(version: int) -> None:
        """Raises RefusedError if the server is too old."""
        if version < VERSION_MIN:
            raise RefusedError(
                f"the server is PostgreSQL {version}, but WAL can be streamed only from PostgreSQL "
                f"{VERSION_MIN} or later. Upgrade it (pg_upgrade), or capture the changes of its tables "
                "instead: ottla connect postgres-cdc"
            )

    @property
    def pgconn(self) -> pq.abc.PGconn:
        """The libpq connection, for calls that psycopg does not offer."""
        return self._connection.pgconn

    @property
    def version(self) -> int:
        """The major version of the server, for example 16."""
        return self.pgconn.server_version // 10000

    async def identify(self) -> Identity:
        """Returns the server's system id, timeline and flushed WAL position (IDENTIFY_SYSTEM)."""
        found = (await self._query("IDENTIFY_SYSTEM"))[0]
        system_id, timeline, flushed = (each or "" for each in found[:3])
        return Identity(int(system_id), TimelineId(int(timeline)), parse_lsn(flushed))

    async def setting(self, name: str) -> str:
        """Returns a setting as SHOW prints it."""
        return (await self._query(f"SHOW {name}"))[0][0] or ""

    async def history(self, timeline: TimelineId) -> bytes:
        """Returns the history file of a timeline. Timeline 1 has none."""
        return ((await self._query(f"TIMELINE_HISTORY {timeline}"))[0][1] or "").encode()

    async def slot(self, name: str) -> Slot | None:
        """Returns a slot, or None if it does not exist."""
        kind, restart_lsn, _ = (await self._query(f"READ_REPLICATION_SLOT {quoted(name)}"))[0]
        if kind is None:
            return None
        return Slot(None if restart_lsn is None else parse_lsn(restart_lsn))

    async def create_slot(self, name: str) -> None:
        """Creates a physical slot that keeps WAL from now on."""
        await self._query(f"CREATE_REPLICATION_SLOT {quoted(name)} PHYSICAL RESERVE_WAL")

    async def drop_slot(self, name: str) -> None:
        """Drops a replication slot, after waiting until no other connection uses it."""
        await self._query(f"DROP_REPLICATION_SLOT {quoted(name)} WAIT")

    async def start(self, slot: str, first: Lsn, timeline: TimelineId) -> None:
        """Starts the stream. Raises RefusedError, for example if the slot is in use."""
        try:
            await self._connection.start_physical(first, timeline=timeline, slot=slot)
        except replication.RefusedError as failure:
            raise self._failure(str(failure), failure.sqlstate) from None

    async def receive(self, timeout_s: float) -> list[WalData | Keepalive] | StreamEnd:
        """Returns the available messages. Raises UnreachableError, or WalGoneError if the server lacks the requested
        WAL."""
        try:
            return await self._connection.receive(timeout_s=timeout_s)
        except replication.StreamEndedError as end:
            if end.next_timeline is None or end.next_lsn is None:
                return StreamEnd()
            return StreamEnd(TimelineId(end.next_timeline), Lsn(end.next_lsn))
        except replication.RefusedError as failure:
            raise stream_failed(str(failure), failure.sqlstate) from None

    def report(self, flushed: Lsn) -> None:
        """Reports that WAL before `flushed` is durable.

        The same LSN is reported as written, so that synchronous_commit=remote_write does not return for WAL that only
        this process has. Nothing is ever applied here, so commits with remote_apply do not return, as with
        pg_receivewal.
        """
        try:
            self._connection.send_status(flushed, applied_lsn=0)
        except replication.RefusedError as failure:
            raise stream_failed(str(failure), failure.sqlstate) from None

    def failure(self, result: pq.abc.PGresult | None) -> PostgresError:
        """Returns the error of a command that was run directly through libpq."""
        message = b"" if result is None else result.error_message
        state = None if result is None else result.error_field(pq.DiagnosticField.SQLSTATE)
        text = (message or self.pgconn.error_message).decode("utf-8", errors="replace")
        return self._failure(text, None if state is None else state.decode())

    def _failure(self, text: str, sqlstate: str | None) -> PostgresError:
        if self.pgconn.status != pq.ConnStatus.OK:
            return UnreachableError(f"the connection to the server was lost: {_one_line(text)}")
        return command_failed(text, self._asked, sqlstate)

    async def _query(self, command: str) -> list[tuple[str | None, ...]]:
        try:
            return await self._connection.query(command)
        except replication.RefusedError as failure:
            raise self._failure(str(failure), failure.sqlstate) from None

    async def close(self) -> None:
        """Closes the connection, which also ends a running stream."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _asked(conninfo: str, slot: str) -> ConnectionTarget:
    """Returns the user, server and slot, with libpq's defaults filled in."""
    words = {each.keyword: each.val or each.compiled for each in pq.Conninfo.get_defaults()}
    words |= {each.keyword: each.val for each in pq.Conninfo.parse(conninfo.encode()) if each.val is not None}

    def word(name: bytes, default: str) -> str:
        return (words.get(name) or b"").decode() or default

    return ConnectionTarget(
        user=word(b"user", "?"), host=word(b"host", "localhost"), port=word(b"port", "5432"), slot=slot
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
