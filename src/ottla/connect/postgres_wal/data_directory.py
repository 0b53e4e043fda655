"""Restores a data directory from a backup's archives and verifies each file against the server's manifest."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from crc32c import crc32c

from ottla.connect.postgres_wal.backup_store import Backup, BackupStore, DamagedBackupError
from ottla.connect.postgres_wal.base_backup import MANIFEST
from ottla.connect.postgres_wal.failures import RefusedError
from ottla.file_sync import sync_path

BLOCK_BYTES = 1 << 20
BASE = "base.tar"
SYNCS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size and checksum of a file as written."""

    size_bytes: int
    crc32c: int


def lay_down(store: BackupStore, backup: Backup, directory: Path) -> dict[str, Path]:
    """Unpacks the backup into a directory that is empty or does not exist. Returns the location of each tablespace.

    Raises DamagedBackupError.
    """
    tablespaces = _prepare(backup, directory)
    written: dict[str, FileDigest] = {}
    manifest = b""
    for file in backup.files:
        blocks = store.read_file(backup, file)
        if file.name == MANIFEST:
            manifest = b"".join(blocks)
        elif file.name == BASE:
            written |= _unpack(blocks, directory, "")
        else:
            oid = file.name.removesuffix(".tar")
            written |= _unpack(blocks, tablespaces[oid], f"pg_tblspc/{oid}/")
    _check(manifest, written, backup)
    links = directory / "pg_tblspc"
    for oid, place in tablespaces.items():
        link = links / oid
        if link.is_symlink() or link.exists():
            _remove(link)
        link.symlink_to(place.absolute())
    return tablespaces


def check_empty(backup: Backup, directory: Path) -> dict[str, Path]:
    """Returns the location for each tablespace: next to the directory, because a tablespace may not be inside it.

    Raises RefusedError if a directory is not empty.
    """
    oids = [each.oid for each in backup.tablespaces]
    tablespaces = {oid: directory.with_name(f"{directory.name}-tablespace-{oid}") for oid in oids}
    for place in (directory, *tablespaces.values()):
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise RefusedError(f"{place} is not empty; choose an empty or new directory with --to")
    return tablespaces


def _prepare(backup: Backup, directory: Path) -> dict[str, Path]:
    tablespaces = check_empty(backup, directory)
    for place in (directory, *tablespaces.values()):
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.chmod(0o700)  # the server requires this mode
    return tablespaces


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink()


def _unpack(blocks: Iterable[bytes], directory: Path, prefix: str) -> dict[str, FileDigest]:
    """Extracts files and directories. Returns the files by their names in the manifest."""
    written: dict[str, FileDigest] = {}
    reader = io.BufferedReader(_Blocks(iter(blocks)), BLOCK_BYTES)
    with tarfile.open(mode="r|", fileobj=reader) as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                raise DamagedBackupError(f"the backup contains a file outside its directory: {member.name}")
            place = directory / name
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
            elif member.isreg():
                content = archive.extractfile(member)
                assert content is not None, "a regular file has content"
                place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                written[prefix + str(name)] = _write(place, content)
            # Symbolic links are skipped: they point to tablespaces, which are restored elsewhere.
    while reader.read(BLOCK_BYTES):
        pass  # read to the end, where damage is detected
    return written


def _write(place: Path, content: IO[bytes]) -> FileDigest:
    size, checksum = 0, 0
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while block := content.read(BLOCK_BYTES):
            file.write(block)
            size += len(block)
            checksum = crc32c(block, checksum)
    return FileDigest(size, checksum)


def _check(manifest: bytes, written: dict[str, FileDigest], backup: Backup) -> None:
    """Checks the files against the manifest, in which PostgreSQL writes a CRC32C as its four bytes in memory order."""
    try:
        files: list[dict[str, Any]] = json.loads(manifest)["Files"]
    except (ValueError, KeyError):
        raise DamagedBackupError(f"the backup {backup.name} has no readable manifest") from None
    for file in files:
        found = written.get(file["Path"])
        expected = int.from_bytes(bytes.fromhex(file["Checksum"]), "little")
        if found is None or found.size_bytes != file["Size"] or found.crc32c != expected:
            raise DamagedBackupError(f"{file['Path']} of the backup {backup.name} has changed since the server sent it")


class _Blocks(io.RawIOBase):
    """Presents blocks as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def sync_tree(directory: Path) -> None:
    """Syncs all files of a directory and their names to stable storage: they may be the only remaining copy of a
    database."""
    directories, files = [], []
    for place, _, names in os.walk(directory):
        directories.append(place)
        files += [os.path.join(place, name) for name in names]
    # In parallel: there may be a thousand small files, each of which waits for the disk.
    with ThreadPoolExecutor(SYNCS_AT_ONCE) as threads:
        list(threads.map(sync_path, files))
        list(threads.map(sync_path, [*directories, os.fspath(directory.absolute().parent)]))
