"""A cache directory for files that make Spark start faster. It can be deleted at any time."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

DIRECTORY_VARIABLE = "OTTLA_CACHE_DIRECTORY"


def cache_directory() -> Path:
    """Returns the cache directory, which must belong to this user alone, because files in it are executed.

    Raises OSError if it cannot be created or others can write to it.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = Path(named) if named else base / "ottla"
    directory /= "spark"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{directory} is writable by other users")
    if any(each.isspace() or each in "\"'" for each in str(directory)):
        raise OSError(f"{directory} contains characters that Spark would treat as the end of an option")
    return directory


def key_of(*parts: str) -> str:
    """Returns a short name derived from all parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def make_once(place: Path, fill: Callable[[Path], None]) -> Path:
    """Creates a directory atomically, even if several processes create it at the same time."""
    if place.exists():
        return place
    fresh = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        fill(fresh)
        fresh.rename(place)
    except OSError:
        if not place.exists():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place
