"""A replication connection to a PostgreSQL server, through libpq: logins, TLS and ~/.pgpass are as psql has them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ottla.connect.postgres_wal.failures import (
    Asked,
    PostgresError,
    RefusedError,
    UnreachableError,
    command_failed,
    connecting_failed,
)
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, parse_lsn

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

VERSION_MIN = 15
CONNECT_TIMEOUT_S = 10
APPLICATION_NAME = "ottla"


@dataclass(frozen=True, slots=True)
class Identity:
    system_id: int
    timeline: TimelineId
    flushed: Lsn


@dataclass(frozen=True, slots=True)
class Slot:
    restart_lsn: Lsn | None  # None: nothing is reserved yet, or the server gave it up


class Server:
    """Commands of the replication protocol, one after the other. `connection` is for those who stream."""

    def __init__(self, connection: PGconn, asked: Asked) -> None:
        self.connection = connection
        self.asked = asked

    @classmethod
    async def connect(cls, dsn: str, *, application_name: str = APPLICATION_NAME, slot: str = "ottla") -> Self:
        """Raises UnreachableError or RefusedError."""
        from psycopg import OperationalError, ProgrammingError, pq
        from psycopg.conninfo import make_conninfo

        try:
            conninfo = make_conninfo(
                dsn, replication="true", application_name=application_name, connect_timeout=CONNECT_TIMEOUT_S
            )
        except ProgrammingError as failure:
            raise RefusedError(f"{failure}".strip() + "; an address looks like postgresql://user@host:5432/") from None
        try:
            connection = await asyncio.to_thread(pq.PGconn.connect, conninfo.encode())
        except OperationalError as failure:
            raise UnreachableError(str(failure)) from None
        asked = Asked(
            user=(connection.user or b"").decode(),
            host=(connection.host or b"").decode(),
            port=(connection.port or b"").decode(),
            slot=slot,
        )
        if connection.status != pq.ConnStatus.OK:
            text = connection.error_message.decode("utf-8", errors="replace")
            connection.finish()
            raise connecting_failed(text, asked)
        server = cls(connection, asked)
        server._check_version()
        return server

    def _check_version(self) -> None:
        version = self.connection.server_version // 10000
        if version < VERSION_MIN:
            self.close()
            raise RefusedError(
                f"the server is PostgreSQL {version}; WAL is kept from PostgreSQL {VERSION_MIN} on. Upgrade it "
                "(pg_upgrade), or keep its tables' changes instead: ottla connect postgres-cdc"
            )

    @property
    def version(self) -> int:
        return self.connection.server_version // 10000

    async def identify(self) -> Identity:
        (row,) = await self.rows("IDENTIFY_SYSTEM")
        system_id, timeline, flushed = (_text(value) for value in row[:3])
        return Identity(int(system_id), TimelineId(int(timeline)), parse_lsn(flushed))

    async def setting(self, name: str) -> str:
        """As SHOW prints it."""
        ((value,),) = await self.rows(f"SHOW {name}")
        return _text(value)

    async def history(self, timeline: TimelineId) -> bytes:
        """The timeline's history file. Timeline 1 has none."""
        ((_, content),) = await self.rows(f"TIMELINE_HISTORY {timeline}")
        assert content is not None, "the protocol has no history without bytes"
        return content

    async def slot(self, name: str) -> Slot | None:
        ((kind, restart_lsn, _),) = await self.rows(f"READ_REPLICATION_SLOT {quoted(name)}")
        if kind is None:
            return None
        return Slot(None if restart_lsn is None else parse_lsn(_text(restart_lsn)))

    async def create_slot(self, name: str) -> None:
        """A physical one, which keeps WAL from now on."""
        await self.rows(f"CREATE_REPLICATION_SLOT {quoted(name)} PHYSICAL (RESERVE_WAL true)")

    async def drop_slot(self, name: str) -> None:
        await self.rows(f"DROP_REPLICATION_SLOT {quoted(name)}")

    async def rows(self, command: str) -> list[list[bytes | None]]:
        from psycopg import pq

        result = await asyncio.to_thread(self.connection.exec_, command.encode())
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise self.failure(result)
        return [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]

    def failure(self, result: PGresult | None) -> PostgresError:
        """Why a command or a stream ended as it should not."""
        from psycopg import pq

        message = b"" if result is None else result.error_message
        text = (message or self.connection.error_message).decode("utf-8", errors="replace")
        if self.connection.status != pq.ConnStatus.OK:
            return UnreachableError(f"the connection to the server is lost: {' '.join(text.split())}")
        return command_failed(text, replace(self.asked))

    def close(self) -> None:
        self.connection.finish()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def quoted(name: str) -> str:
    """An identifier of the replication grammar."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: bytes | None) -> str:
    return (value or b"").decode()
