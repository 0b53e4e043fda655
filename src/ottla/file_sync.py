"""Syncs files and directories to stable storage. A file's name is durable only when its directory is synced."""

from __future__ import annotations

import os


def sync_path(path: str | os.PathLike[str]) -> None:
    """Syncs a file, or the names in a directory."""
    _sync(path, os.O_RDONLY)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Syncs the names in a directory. Raises NotADirectoryError for a file."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str | os.PathLike[str], flags: int) -> None:
    handle = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
