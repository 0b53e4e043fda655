"""Checks Python, the event loop, the compiled extensions and the libraries."""

from __future__ import annotations

import platform
import sqlite3
import sys
from collections.abc import Iterator
from importlib import metadata

from ottla import __version__
from ottla.cli.doctor.checks import Check, ok, warn
from ottla.extensions import ADVICE, extension_names, missing_extensions

SQLITE_WAL_FIXED = (3, 51, 3)


def software_checks() -> Iterator[Check]:
    """Yields the checks of the installed software."""
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
    names, missing = extension_names(), missing_extensions()
    if missing:
        advice = f"pure Python is used instead, which is much slower. {ADVICE} Missing: {', '.join(missing)}"
        return warn("compiled extensions", f"{len(names) - len(missing)} of {len(names)}", advice)
    return ok("compiled extensions", f"all {len(names)}")


def _sqlite() -> Check:
    note = "" if sqlite3.sqlite_version_info >= SQLITE_WAL_FIXED else "WAL mode is used from SQLite 3.51.3 on"
    return ok("SQLite", sqlite3.sqlite_version, note)


def _arrow() -> Check:
    version = _version("pyarrow")
    if version is None:
        return ok("Arrow", "not installed", "optional: pip install 'ottla[arrow]' to produce and consume Arrow tables")
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    return ok("Arrow", f"pyarrow {version}" + (", free-threaded" if free_threaded else ""))
