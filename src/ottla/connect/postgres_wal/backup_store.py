"""Stores base backups in a directory or an object store.

A backup consists of archives, compressed with lz4, and `NAME.json`, which is written last and publishes the backup.
Archives without such a file are left over from an interrupted backup.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import lz4.frame
from crc32c import crc32c

from ottla.connect.postgres_wal.base_backup import Tablespace
from ottla.connect.postgres_wal.failures import PostgresError
from ottla.connect.postgres_wal.positions import Lsn, TimelineId
from ottla.recovery.snapshot_files import SnapshotFiles, open_files

FORMAT = 1
DESCRIPTION = ".json"
COMPRESSED = ".lz4"
PIECE_BYTES = 1 << 20


class DamagedBackupError(PostgresError):
    """A file of the backup is not what was written."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An archive of a backup."""

    name: str  # the server's name for the archive
    size_bytes: int  # after compression
    crc32c: int


@dataclass(frozen=True, slots=True)
class Backup:
    """The description of a backup, stored as `NAME.json`."""

    name: str
    system_id: int
    server_version: int
    timeline: TimelineId
    start: Lsn
    end: Lsn
    started_unix_us: int
    ended_unix_us: int  # when the server sent the WAL at `end`, by its clock
    next_xid: int
    segment_bytes: int
    settings: dict[str, str]
    tablespaces: list[Tablespace]
    history: str  # the timeline's history file, if it has one
    files: list[StoredFile] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """The stored size of all files."""
        return sum(each.size_bytes for each in self.files)


class BackupStore:
    """The backups at one place."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._files: SnapshotFiles = open_files(place)

    def backups(self) -> list[Backup]:
        """Returns the backups, oldest first."""
        names = [name for name in self._files.names() if name.endswith(DESCRIPTION)]
        return sorted((self._read(name) for name in names), key=lambda each: (each.timeline, each.start))

    def write_file(self, backup: str, archive: str, blocks: Iterable[bytes]) -> StoredFile:
        """Writes one archive of a backup that is not published yet."""
        total = _Total()
        self._files.write(_file_name(backup, archive), total.through(_compressed(blocks)))
        return StoredFile(archive, total.size_bytes, total.crc32c)

    def publish(self, backup: Backup) -> None:
        """Publishes the backup by writing its description."""
        text = json.dumps({"format": FORMAT, **asdict(backup)}, indent=1)
        self._files.write(backup.name + DESCRIPTION, [text.encode()])

    def read_file(self, backup: Backup, file: StoredFile) -> Iterator[bytes]:
        """Yields the bytes of an archive. Raises DamagedBackupError, at the latest at its end."""
        total = _Total()
        try:
            yield from _decompressed(total.through(self._files.blocks(_file_name(backup.name, file.name))))
        except (FileNotFoundError, RuntimeError) as failure:  # lz4 raises RuntimeError
            raise DamagedBackupError(f"{file.name} of the backup {backup.name} cannot be read: {failure}") from None
        if (total.size_bytes, total.crc32c) != (file.size_bytes, file.crc32c):
            raise DamagedBackupError(
                f"{file.name} of the backup {backup.name} is damaged; use another backup (--backup)"
            )

    def remove(self, backup: Backup) -> None:
        """Removes a backup. The description goes first, so that a partly removed backup is never listed."""
        self._files.remove(backup.name + DESCRIPTION)
        self.discard(backup.name)

    def discard(self, name: str) -> None:
        """Removes all archives of a backup that is not published."""
        for each in self._files.names():
            if each.startswith(name + "-"):
                self._files.remove(each)

    def _read(self, name: str) -> Backup:
        text = b"".join(self._files.blocks(name))
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise PostgresError(f"a newer version of ottla wrote {name}; use that version")
            fields["tablespaces"] = [Tablespace(**each) for each in fields["tablespaces"]]
            fields["files"] = [StoredFile(**each) for each in fields["files"]]
            return Backup(**fields)
        except (ValueError, TypeError, KeyError):
            raise DamagedBackupError(f"{name} in {self.place} is not a backup description") from None


def _file_name(backup: str, archive: str) -> str:
    return f"{backup}-{archive}{COMPRESSED}"


class _Total:
    """Counts and checksums blocks as they pass."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.crc32c = 0

    def through(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.size_bytes += len(block)
            self.crc32c = crc32c(block, self.crc32c)
            yield block


def _compressed(blocks: Iterable[bytes]) -> Iterator[bytes]:
    compressor = lz4.frame.LZ4FrameCompressor(content_checksum=True)
    yield compressor.begin()
    for block in blocks:
        if packed := compressor.compress(block):
            yield packed
    yield compressor.flush()


def _decompressed(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields decompressed pieces of bounded size, whatever the input claims."""
    decompressor = lz4.frame.LZ4FrameDecompressor()
    for block in blocks:
        data = decompressor.decompress(block, max_length=PIECE_BYTES)
        while data:
            yield data
            data = b"" if decompressor.needs_input or decompressor.eof else decompressor.decompress(b"", PIECE_BYTES)
