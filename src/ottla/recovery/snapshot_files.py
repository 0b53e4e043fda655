"""Snapshot files, in a local directory or in an object store through fsspec.

A file appears completely or not at all. In a directory, it is written under a temporary name, synced and renamed, and
then the directory is synced. In an object store, an object appears when its upload is complete.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from ottla.file_sync import sync_directory

BLOCK_BYTES = 1 << 20
TEMPORARY = ".tmp-"


class SnapshotFiles(Protocol):
    """A flat collection of files."""

    def names(self) -> list[str]:
        """Returns the names of all files, sorted."""
        ...

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        """Writes a file atomically."""
        ...

    def blocks(self, name: str) -> Iterator[bytes]:
        """Reads a file in blocks. Raises FileNotFoundError if it does not exist."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file. Does nothing if it does not exist."""
        ...


def open_files(place: str | os.PathLike[str]) -> SnapshotFiles:
    """Opens a path, or an fsspec URL such as s3://bucket/path or memory://path."""
    text = os.fspath(place)
    if "://" not in text or text.startswith("file://"):
        return DirectoryFiles(Path(text.removeprefix("file://")))
    return ObjectFiles(text)


class DirectoryFiles:
    """Snapshot files in a local directory, which is created if it does not exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        whole = directory.absolute()
        new = [path for path in (whole, *whole.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for path in new:
            sync_directory(path.parent)

    def names(self) -> list[str]:
        return sorted(path.name for path in self._directory.iterdir() if path.is_file())

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        temporary = self._directory / f"{name}{TEMPORARY}{uuid.uuid4().hex[:8]}"
        try:
            with open(temporary, "xb") as file:
                for block in blocks:
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, self._directory / name)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            raise
        sync_directory(self._directory)

    def blocks(self, name: str) -> Iterator[bytes]:
        with open(self._directory / name, "rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)


class ObjectFiles:
    """Snapshot files in an object store, through fsspec."""

    def __init__(self, address: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise ImportError(
                f"snapshots in {address} need fsspec and its file system for this kind of URL: pip install "
                "'ottla[recovery]'"
            ) from None
        self._files: Any
        self._files, self._base = fsspec.core.url_to_fs(address)

    def _path(self, name: str) -> str:
        return posixpath.join(self._base, name)

    def names(self) -> list[str]:
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._base, detail=False)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(path) for path in found)

    def write(self, name: str, blocks: Iterable[bytes]) -> None:
        self._files.makedirs(self._base, exist_ok=True)
        file = self._files.open(self._path(name), "wb")
        try:
            for block in blocks:
                file.write(block)
        except BaseException:
            # Closing would publish half an object, and an abandoned file closes itself unless it is marked as closed.
            with contextlib.suppress(Exception):
                file.discard()
            with contextlib.suppress(Exception):
                file.closed = True
            raise
        file.close()

    def blocks(self, name: str) -> Iterator[bytes]:
        with self._files.open(self._path(name), "rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))
