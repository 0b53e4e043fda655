"""Copies a server's data directory over the replication protocol (BASE_BACKUP), as a stream of archives.

The copy is inconsistent by itself, because it is read while the server writes. Replaying the WAL between its `start`
and its `end`, which is in the log, makes it consistent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from psycopg import OperationalError, pq

from ottla.connect.postgres_wal.failures import PostgresError
from ottla.connect.postgres_wal.positions import Lsn, TimelineId, parse_lsn
from ottla.connect.postgres_wal.server import Server

MANIFEST = "backup_manifest"
CONTROL_FILE = b"global/pg_control\0"
CONTROL_FILE_BYTES = 8192
# A tar header, the control file, and the zeros that end an archive: pg_control is the last file of the base archive.
_TAIL_BYTES = 512 + CONTROL_FILE_BYTES + 1024 + 512
_NEXT_XID_AT = 64  # offset in ControlFileData, the same from PostgreSQL 12 to 18
_NEXT_XID = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class Tablespace:
    """A tablespace of the server."""

    oid: str
    location: str


@dataclass(slots=True)
class BaseBackup:
    """The server's description of the copy. `end` is known after all archives have been read."""

    timeline: TimelineId
    start: Lsn
    tablespaces: list[Tablespace]
    end: Lsn = field(default=Lsn(0))


class BackupStream:
    """Reads a base backup. It blocks, so run it in a thread. Call `open`, read each archive to its end, then call
    `finish`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = server.pgconn

    def open(self, label: str) -> BaseBackup:
        """Starts the backup."""
        options = f"LABEL '{label.replace(chr(39), chr(39) * 2)}', CHECKPOINT 'fast', WAIT false, MANIFEST 'yes'"
        self._connection.send_query(f"BASE_BACKUP ({options})".encode())
        start, timeline = self._row()
        spaces = [
            Tablespace(oid.decode(), (where or b"").decode()) for oid, where, _ in self._rows() if oid is not None
        ]
        return BaseBackup(TimelineId(int(timeline)), parse_lsn(start), spaces)

    def archives(self) -> Iterator[tuple[str, Iterable[bytes]]]:
        """Yields the name and content of each archive: `base.tar`, one per tablespace, named after its oid, and the
        manifest last."""
        result = self._connection.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_OUT:
            raise self._server.failure(result)
        message = self._message()
        while message is not None:
            name = _archive_name(message)
            following: list[bytes | None] = []
            yield name, self._content(following)
            message = following[0]

    def finish(self, backup: BaseBackup) -> None:
        """Ends the backup and sets `backup.end`."""
        end, _ = self._row()
        backup.end = parse_lsn(end)
        while self._connection.get_result() is not None:
            pass

    def _content(self, following: list[bytes | None]) -> Iterator[bytes]:
        """Yields the content of an archive. Appends the first message of the next archive to `following`."""
        while (message := self._message()) is not None:
            if message[:1] == b"d":
                yield message[1:]
            elif message[:1] != b"p":  # progress messages say nothing that the bytes do not
                break
        following.append(message)

    def _message(self) -> bytes | None:
        try:
            length, data = self._connection.get_copy_data(0)
        except OperationalError as failure:
            raise PostgresError(f"the backup failed: {' '.join(str(failure).split())}") from None
        return None if length == -1 else bytes(data)

    def _rows(self) -> list[tuple[bytes | None, ...]]:
        result = self._connection.get_result()
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise self._server.failure(result)
        return [tuple(result.get_value(row, each) for each in range(result.nfields)) for row in range(result.ntuples)]

    def _row(self) -> tuple[str, str]:
        (row,) = self._rows()
        return (row[0] or b"").decode(), (row[1] or b"").decode()


def _archive_name(message: bytes) -> str:
    if message[:1] == b"m":
        return MANIFEST
    if message[:1] == b"n":
        name = message[1:].split(b"\0")[0].decode()
        if name and "/" not in name and not name.startswith("."):
            return name
    raise PostgresError(f"the server sent a message of the unknown kind {message[:1]!r} in a backup")


class ControlFileWatch:
    """Passes an archive through and keeps its tail, which contains the control file."""

    def __init__(self) -> None:
        self._tail = b""

    def through(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the blocks unchanged while remembering the last bytes of the archive."""
        for block in blocks:
            self._tail = (self._tail + block)[-_TAIL_BYTES:]
            yield block

    def next_xid(self) -> int:
        """Returns the first transaction id that the server had not assigned at the backup's checkpoint."""
        at = self._tail.rfind(CONTROL_FILE)
        if at < 0 or len(self._tail) < at + 512 + CONTROL_FILE_BYTES:
            raise PostgresError("the backup does not end with the server's control file")
        xid: int = _NEXT_XID.unpack_from(self._tail, at + 512 + _NEXT_XID_AT)[0]
        return xid
