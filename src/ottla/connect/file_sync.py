"""Durable files for connectors."""

from __future__ import annotations

import os


def sync_path(path: str | os.PathLike[str]) -> None:
    """Syncs a file, or the names in a directory, to stable storage."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
