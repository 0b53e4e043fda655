"""What a connector leaves on a disk stays there."""

from __future__ import annotations

import os


def sync_path(path: str | os.PathLike[str]) -> None:
    """A file, or the names in a directory, on stable storage."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
