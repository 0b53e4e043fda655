"""PostgreSQL's streaming replication protocol, physical and logical, over libpq.

    connection = await ReplicationConnection.connect("postgresql://ann@db/shop")
    slot = await connection.create_logical_slot("shop_cdc", "pgoutput")
    await connection.start_logical("shop_cdc", slot.consistent_lsn, {"proto_version": "1", "publication_names": "shop"})
    while True:
        for message in await connection.receive():
            ...                                      # WalData or Keepalive
        connection.send_status(flushed_lsn)          # at least every few seconds: wal_sender_timeout

psycopg does not support replication, but its `PGconn` exposes libpq, which handles TLS, passwords and multiple hosts.
Nothing here blocks the event loop. One coroutine receives; another may call `send_status`.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from psycopg import OperationalError, pq

from ottla.connect.failures import ConnectorError
from ottla.connect.postgres.lsn import lsn_text, parse_lsn

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01, the epoch of PostgreSQL's timestamps, in microseconds since 1970."""
CONNECT_TIMEOUT_S = 15.0
MESSAGES_MAX = 4096
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Maximum size of the result of one `receive`; a single message may be larger."""

_WAL_DATA = struct.Struct(">cQQq")
_KEEPALIVE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")
_WAL_DATA_BYTES = _WAL_DATA.size


class WalData(NamedTuple):
    """A piece of the WAL, or a message of logical decoding."""

    start_lsn: int
    """Where the data begins; 0 for messages that logical decoding adds."""
    end_lsn: int
    """The end of the server's WAL when it sent this message."""
    sent_us: int
    """When the server sent the message, by its clock, in microseconds since 1970."""
    data: memoryview


class Keepalive(NamedTuple):
    """A message of the server that carries no data."""

    end_lsn: int
    """Everything before this LSN that concerns this stream has been sent."""
    sent_us: int
    wants_reply: bool


class SystemIdentity(NamedTuple):
    """The reply to IDENTIFY_SYSTEM."""

    system_id: str
    timeline: int
    flushed_lsn: int
    database: str | None


class CreatedSlot(NamedTuple):
    """The reply to CREATE_REPLICATION_SLOT."""

    name: str
    consistent_lsn: int
    snapshot_name: str | None
    """The argument for `SET TRANSACTION SNAPSHOT`. It is valid until this connection runs another command."""


class RefusedError(ConnectorError):
    """PostgreSQL rejected a command or a connection. `sqlstate` is None if no connection was established."""

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class StreamEndedError(ConnectorError):
    """The server ended the stream. For a physical stream, this has the next timeline and the LSN at which it begins."""

    def __init__(self, next_timeline: int | None, next_lsn: int | None) -> None:
        where = "" if next_timeline is None or next_lsn is None else f"; timeline {next_timeline} follows"
        super().__init__(f"PostgreSQL ended the replication stream{where}")
        self.next_timeline = next_timeline
        self.next_lsn = next_lsn


class ReplicationConnection:
    """A replication connection. Created by `connect`. After a `start_...` call it streams and accepts no other
    command."""

    def __init__(self, connection: pq.abc.PGconn) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._readable = asyncio.Event()
        self._watched: int | None = None  # the socket; libpq clears its number when the connection is lost
        self._is_at_end = False

    @classmethod
    async def connect(
        cls, conninfo: str, *, physical: bool = False, settings: Mapping[str, str] | None = None
    ) -> ReplicationConnection:
        """Connects. `settings` are session settings, such as datestyle. Raises RefusedError if the connection fails."""
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        known = conninfo_to_dict(conninfo)
        options = [str(known.get("options") or ""), *(f"-c {name}={value}" for name, value in (settings or {}).items())]
        text = make_conninfo(
            conninfo, replication="true" if physical else "database", options=" ".join(filter(None, options)) or None
        )
        try:
            async with asyncio.timeout(float(known.get("connect_timeout") or CONNECT_TIMEOUT_S)):
                return cls(await _connected(text))
        except TimeoutError:
            raise RefusedError("PostgreSQL did not respond in time") from None

    @property
    def pgconn(self) -> pq.abc.PGconn:
        """The libpq connection, for functions that only one caller needs."""
        return self._connection

    # Commands that precede the stream.

    async def identify(self) -> SystemIdentity:
        """Returns the server's system id, timeline and WAL position (IDENTIFY_SYSTEM)."""
        system_id, timeline, lsn, database = (await self.query("IDENTIFY_SYSTEM"))[0]
        assert system_id is not None
        assert timeline is not None
        assert lsn is not None
        return SystemIdentity(system_id, int(timeline), parse_lsn(lsn), database)

    async def create_logical_slot(
        self, name: str, plugin: str = "pgoutput", *, snapshot: str = "export"
    ) -> CreatedSlot:
        """Creates a logical slot. `snapshot` is export, noexport or use. Waits until the transactions running now have
        ended."""
        rows = await self.query(f"CREATE_REPLICATION_SLOT {quoted(name)} LOGICAL {plugin} {snapshot.upper()}_SNAPSHOT")
        slot, lsn, snapshot_name, _ = rows[0]
        assert slot is not None
        assert lsn is not None
        return CreatedSlot(slot, parse_lsn(lsn), snapshot_name)

    async def create_physical_slot(self, name: str, *, reserve_wal: bool = True) -> None:
        """Creates a physical slot. With `reserve_wal` the server keeps WAL from now on, instead of from the first
        connection."""
        await self.query(f"CREATE_REPLICATION_SLOT {quoted(name)} PHYSICAL{' RESERVE_WAL' if reserve_wal else ''}")

    async def drop_slot(self, name: str, *, wait: bool = True) -> None:
        """Drops a replication slot. With `wait`, waits until no other connection uses it."""
        await self.query(f"DROP_REPLICATION_SLOT {quoted(name)}{' WAIT' if wait else ''}")

    async def query(self, command: str) -> list[tuple[str | None, ...]]:
        """Returns the rows of a command's reply as text. Raises RefusedError."""
        result = await asyncio.to_thread(self._connection.exec_, command.encode())
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise self._refused(result)
        return _rows(result)

    # Stream.

    async def start_logical(self, slot: str, lsn: int, options: Mapping[str, str]) -> None:
        """Starts the stream at `lsn`, or at the LSN confirmed to the server earlier, whichever is later."""
        listed = ", ".join(f"{quoted(name)} {_literal(value)}" for name, value in options.items())
        await self._start(f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {lsn_text(lsn)} ({listed})")

    async def start_physical(self, lsn: int, *, timeline: int | None = None, slot: str | None = None) -> None:
        """Starts streaming WAL from `lsn` on, from this timeline or else the server's current one."""
        named = "" if slot is None else f"SLOT {quoted(slot)} "
        of_timeline = "" if timeline is None else f" TIMELINE {timeline}"
        await self._start(f"START_REPLICATION {named}PHYSICAL {lsn_text(lsn)}{of_timeline}")

    async def _start(self, command: str) -> None:
        result = await asyncio.to_thread(self._connection.exec_, command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._refused(result)
        self._connection.nonblocking = 1
        self._is_at_end = False
        self._watched = self._connection.socket
        self._loop.add_reader(self._watched, self._readable.set)

    async def receive(self, *, timeout_s: float | None = None, limit: int = MESSAGES_MAX) -> list[WalData | Keepalive]:
        """Returns the available messages, up to a few megabytes. Waits for the first one; returns an empty list on
        timeout.

        Raises StreamEndedError when the server ends the stream, RefusedError when the connection breaks.
        """
        messages: list[WalData | Keepalive] = []
        left_bytes = MESSAGE_BYTES_MAX
        take = self._connection.get_copy_data
        if self._is_at_end:
            raise self._ended()
        while True:
            try:
                size, data = take(1)
            except OperationalError as failure:
                raise RefusedError(_one_line(str(failure))) from failure
            if size > 0:
                messages.append(_parse(memoryview(data)))
                left_bytes -= size
                if len(messages) >= limit or left_bytes < 0:
                    return messages
            elif size < 0:
                self._is_at_end = True  # libpq reports this only once
                if messages:
                    return messages
                raise self._ended()
            elif messages:
                return messages
            elif not await self._wait_readable(timeout_s):
                return []

    async def _wait_readable(self, timeout_s: float | None) -> bool:
        if not self._readable.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._readable.wait()
            except TimeoutError:
                return False
        self._readable.clear()
        self._consume()
        return True

    def _consume(self) -> None:
        try:
            self._connection.consume_input()
        except OperationalError as failure:
            raise RefusedError(_one_line(str(failure))) from failure

    def send_status(
        self,
        flushed_lsn: int,
        *,
        written_lsn: int | None = None,
        applied_lsn: int | None = None,
        wants_reply: bool = False,
    ) -> None:
        """Reports what is durable here. The server may discard WAL before `flushed_lsn`, and commits waiting for it
        return."""
        now_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        written = flushed_lsn if written_lsn is None else written_lsn
        applied = flushed_lsn if applied_lsn is None else applied_lsn
        status = _STATUS.pack(b"r", written, flushed_lsn, applied, now_us, wants_reply)
        try:
            self._connection.put_copy_data(status)
            self._connection.flush()
        except OperationalError as failure:
            raise RefusedError(_one_line(str(failure))) from failure

    async def close(self) -> None:
        """Closes the connection at once, even while it streams."""
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            self._watched = None
        self._connection.finish()

    def _ended(self) -> ConnectorError:
        """Returns the reason why the stream ended.

        Reads the whole reply, so that another stream can start on this connection.
        """
        self._connection.nonblocking = 0
        end: ConnectorError = StreamEndedError(None, None)
        try:
            while (result := self._connection.get_result()) is not None:
                if result.status == pq.ExecStatus.COPY_IN:  # the server has closed its side of the copy; close ours
                    self._connection.put_copy_end()
                elif result.status == pq.ExecStatus.FATAL_ERROR:
                    end = self._refused(result)
                elif result.status == pq.ExecStatus.TUPLES_OK and result.ntuples:
                    timeline, lsn = _rows(result)[0][:2]
                    end = StreamEndedError(int(timeline or 0), parse_lsn(lsn or "0/0"))
        except OperationalError as failure:
            return RefusedError(_one_line(str(failure)))
        return end

    def _refused(self, result: pq.abc.PGresult) -> RefusedError:
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        said = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or self._connection.error_message
        return RefusedError(_one_line(said.decode(errors="replace")), None if state is None else state.decode())


async def _connected(conninfo: str) -> pq.abc.PGconn:
    """Connects by following libpq's polling protocol, waiting until the socket is readable or writable as libpq
    asks."""
    loop = asyncio.get_running_loop()
    connection = pq.PGconn.connect_start(conninfo.encode())
    try:
        while True:
            if connection.status == pq.ConnStatus.BAD:
                raise _no_connection(connection)
            step = connection.connect_poll()
            if step == pq.PollingStatus.OK:
                return connection
            if step == pq.PollingStatus.FAILED:
                raise _no_connection(connection)
            ready: asyncio.Future[None] = loop.create_future()
            socket = connection.socket
            watch, forget = (
                (loop.add_reader, loop.remove_reader)
                if step == pq.PollingStatus.READING
                else (loop.add_writer, loop.remove_writer)
            )
            watch(socket, _resolve, ready)
            try:
                await ready
            finally:
                forget(socket)
    except BaseException:
        connection.finish()
        raise


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _no_connection(connection: pq.abc.PGconn) -> RefusedError:
    return RefusedError(_one_line(connection.error_message.decode(errors="replace")))


def _parse(message: memoryview) -> WalData | Keepalive:
    if message[0] == 0x77:  # w
        _, start, end, sent = _WAL_DATA.unpack_from(message)
        return WalData(start, end, sent + POSTGRES_EPOCH_US, message[_WAL_DATA_BYTES:])
    if message[0] == 0x6B:  # k
        _, end, sent, wants_reply = _KEEPALIVE.unpack_from(message)
        return Keepalive(end, sent + POSTGRES_EPOCH_US, bool(wants_reply))
    raise ConnectorError(f"PostgreSQL sent a replication message of an unknown kind: {message[0]:#x}")


def _rows(result: Any) -> list[tuple[str | None, ...]]:
    return [
        tuple(
            None if (value := result.get_value(row, column)) is None else value.decode()
            for column in range(result.nfields)
        )
        for row in range(result.ntuples)
    ]


def quoted(name: str) -> str:
    """Quotes a name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _one_line(text: str) -> str:
    return " ".join(text.split())
