"""PostgreSQL's streaming replication protocol, physical and logical, over libpq.

    connection = await ReplicationConnection.connect("postgresql://ann@db/shop")
    slot = await connection.create_logical_slot("shop_cdc", "pgoutput")
    await connection.start_logical("shop_cdc", slot.consistent_lsn, {"proto_version": "1", "publication_names": "shop"})
    while True:
        for message in await connection.receive():
            ...                                      # WalData or Keepalive
        connection.send_status(flushed_lsn)          # also at least every few seconds: wal_sender_timeout

psycopg has no replication of its own; its `PGconn` gives libpq, which knows TLS, passwords and several hosts. Nothing
here blocks the event loop. One coroutine receives; `send_status` may be called by another.
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
"""2000-01-01 in microseconds since 1970: where PostgreSQL's clocks begin."""
CONNECT_TIMEOUT_S = 15.0
MESSAGES_MAX = 4096
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Of one `receive`; a single message may be larger."""

_WAL_DATA = struct.Struct(">cQQq")
_KEEPALIVE = struct.Struct(">cQqB")
_STATUS = struct.Struct(">cQQQqB")
_WAL_DATA_BYTES = _WAL_DATA.size


class WalData(NamedTuple):
    start_lsn: int
    """Where the data begins; 0 for what logical decoding adds."""
    end_lsn: int
    """The server's current end of the log, when it sent this."""
    sent_us: int
    """By the server's clock, since 1970."""
    data: memoryview


class Keepalive(NamedTuple):
    end_lsn: int
    """Everything before it was sent, as far as it concerns this stream."""
    sent_us: int
    wants_reply: bool


class SystemIdentity(NamedTuple):
    system_id: str
    timeline: int
    flushed_lsn: int
    database: str | None


class CreatedSlot(NamedTuple):
    name: str
    consistent_lsn: int
    snapshot_name: str | None
    """For `SET TRANSACTION SNAPSHOT`, as long as this connection does nothing else."""


class RefusedError(ConnectorError):
    """What PostgreSQL said no to. `sqlstate` is None if it never came to a connection."""

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class StreamEndedError(ConnectorError):
    """The server ended the stream. Of a physical one: the timeline that follows, and where it begins."""

    def __init__(self, next_timeline: int | None, next_lsn: int | None) -> None:
        where = "" if next_timeline is None or next_lsn is None else f"; timeline {next_timeline} goes on"
        super().__init__(f"PostgreSQL ended the replication stream{where}")
        self.next_timeline = next_timeline
        self.next_lsn = next_lsn


class ReplicationConnection:
    """Made by `connect`. After `start_...` it streams, and knows no other command."""

    def __init__(self, connection: pq.abc.PGconn) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._readable = asyncio.Event()
        self._watched: int | None = None  # the socket; libpq forgets its number when the connection is lost
        self._is_at_end = False

    @classmethod
    async def connect(
        cls, conninfo: str, *, physical: bool = False, settings: Mapping[str, str] | None = None
    ) -> ReplicationConnection:
        """`settings` are those of the session, such as datestyle. RefusedError if there is no connection."""
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
            raise RefusedError("no answer from PostgreSQL in time") from None

    @property
    def pgconn(self) -> pq.abc.PGconn:
        """libpq's own, for what only one caller needs."""
        return self._connection

    # Commands, before the stream.

    async def identify(self) -> SystemIdentity:
        system_id, timeline, lsn, database = (await self.query("IDENTIFY_SYSTEM"))[0]
        assert system_id is not None
        assert timeline is not None
        assert lsn is not None
        return SystemIdentity(system_id, int(timeline), parse_lsn(lsn), database)

    async def create_logical_slot(
        self, name: str, plugin: str = "pgoutput", *, snapshot: str = "export"
    ) -> CreatedSlot:
        """`snapshot`: export, noexport or use. Waits until transactions that run now have ended."""
        rows = await self.query(f"CREATE_REPLICATION_SLOT {quoted(name)} LOGICAL {plugin} {snapshot.upper()}_SNAPSHOT")
        slot, lsn, snapshot_name, _ = rows[0]
        assert slot is not None
        assert lsn is not None
        return CreatedSlot(slot, parse_lsn(lsn), snapshot_name)

    async def create_physical_slot(self, name: str, *, reserve_wal: bool = True) -> None:
        """With `reserve_wal` the server keeps its log from now on, and not from the first connection."""
        await self.query(f"CREATE_REPLICATION_SLOT {quoted(name)} PHYSICAL{' RESERVE_WAL' if reserve_wal else ''}")

    async def drop_slot(self, name: str, *, wait: bool = True) -> None:
        await self.query(f"DROP_REPLICATION_SLOT {quoted(name)}{' WAIT' if wait else ''}")

    async def query(self, command: str) -> list[tuple[str | None, ...]]:
        """The rows that it answers, as text. RefusedError."""
        result = await asyncio.to_thread(self._connection.exec_, command.encode())
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise self._refused(result)
        return _rows(result)

    # The stream.

    async def start_logical(self, slot: str, lsn: int, options: Mapping[str, str]) -> None:
        """The server begins at `lsn`, or at what was confirmed to it before, if that is later."""
        listed = ", ".join(f"{quoted(name)} {_literal(value)}" for name, value in options.items())
        await self._start(f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {lsn_text(lsn)} ({listed})")

    async def start_physical(self, lsn: int, *, timeline: int | None = None, slot: str | None = None) -> None:
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
        """What has come, as soon as something has; nothing after the timeout. At most some megabytes.

        StreamEndedError when the server ends it, RefusedError when the connection breaks.
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
                self._is_at_end = True  # libpq says so once
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
        """What is safe here: the server may forget what is before `flushed_lsn`; commits that wait for it return."""
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
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            self._watched = None
        self._connection.finish()

    def _ended(self) -> ConnectorError:
        """Why there is no more to copy. All of the answer is read: another stream may begin on this connection."""
        self._connection.nonblocking = 0
        end: ConnectorError = StreamEndedError(None, None)
        try:
            while (result := self._connection.get_result()) is not None:
                if result.status == pq.ExecStatus.COPY_IN:  # the server's half has ended, ours is open still
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
    """libpq's own steps: wait for what it wants to do next with the socket."""
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
    """As an identifier."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _one_line(text: str) -> str:
    return " ".join(text.split())
