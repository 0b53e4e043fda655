"""Where things are kept that make Spark start faster, and that can be deleted at any time."""

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
    """Of this user alone: what is in it is run. OSError if it cannot be made, or belongs to others."""
    named = os.environ.get(DIRECTORY_VARIABLE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = Path(named) if named else base / "ottla"
    directory /= "spark"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{directory} can be written by others")
    if any(each.isspace() or each in "\"'" for each in str(directory)):
        raise OSError(f"{directory} has characters that Spark takes for the end of an option")
    return directory


def key_of(*parts: str) -> str:
    """A short name for all of these."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def make_once(place: Path, fill: Callable[[Path], None]) -> Path:
    """A directory that is there as a whole or not at all, however many make it at once."""
    if place.exists():
        return place
    fresh = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        fill(fresh)
        fresh.rename(place)
    except OSError:
        if not place.exists():  # else another was faster
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place
