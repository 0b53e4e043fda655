"""Python, the event loop, the compiled parts and the libraries."""

from __future__ import annotations

import importlib.util
import platform
import sqlite3
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from ottla import __version__
from ottla.cli.checks import Check, ok, warn

SQLITE_WAL_FIXED = (3, 51, 3)


def software_checks() -> Iterator[Check]:
    yield ok("ottla", __version__)
    yield ok("Python", f"{platform.python_version()} ({platform.python_implementation()})")
    yield _event_loop()
    yield _extensions()
    yield _sqlite()
    yield _arrow()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _event_loop() -> Check:
    version = _version("uvloop")
    if version is None:
        return warn("event loop", "asyncio", "uvloop handles about twice the requests: pip install uvloop")
    return ok("event loop", f"uvloop {version}")


def _extensions() -> Check:
    """Each Cython source beside our modules must have its compiled form."""
    package = Path(__file__).parent.parent
    names = sorted(
        ".".join(("ottla", *source.relative_to(package).with_suffix("").parts)) for source in package.rglob("_*.pyx")
    )
    missing = [name for name in names if not _is_compiled(name)]
    if missing:
        advice = f"plain Python stands in, many times slower: install a C compiler and reinstall; {', '.join(missing)}"
        return warn("compiled extensions", f"{len(names) - len(missing)} of {len(names)}", advice)
    return ok("compiled extensions", f"all {len(names)}")


def _is_compiled(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and not spec.origin.endswith((".py", ".pyx"))


def _sqlite() -> Check:
    note = "" if sqlite3.sqlite_version_info >= SQLITE_WAL_FIXED else "its WAL mode is not used before 3.51.3"
    return ok("SQLite", sqlite3.sqlite_version, note)


def _arrow() -> Check:
    version = _version("pyarrow")
    if version is None:
        return ok("Arrow", "not installed", "optional: pip install 'ottla[arrow]' for tables in and out")
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    return ok("Arrow", f"pyarrow {version}" + (", without the interpreter's lock" if free_threaded else ""))
