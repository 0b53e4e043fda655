"""Finds out which compiled extensions are present. A missing one is replaced by its pure Python version."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ADVICE = (
    "Install a C compiler and the headers of Python (Debian and Ubuntu: apt install build-essential "
    "python3-dev), then reinstall Ottla with `pip install --force-reinstall --no-deps --no-cache-dir`, or "
    "with `make setup` in a clone."
)
PACKAGE = Path(__file__).parent


def extension_names() -> list[str]:
    """Returns the names of all extensions, compiled or not."""
    return [_name(stub) for stub in _stubs()]


def missing_extensions() -> list[str]:
    """Returns the names of the extensions that are not compiled."""
    return [_name(stub) for stub in _stubs() if not _is_compiled(stub)]


def missing_sentence() -> str | None:
    """Returns a log message that extensions are missing, and what to do. None if all are present."""
    missing = missing_extensions()
    if not missing:
        return None
    count = f"{len(missing)} of {len(extension_names())}"
    return f"{count} compiled extensions are missing; Ottla works, but much slower. {ADVICE}"


def _stubs() -> list[Path]:
    """Returns the stubs of all extensions. Unlike its source, the stub of an extension is part of a wheel."""
    return sorted(PACKAGE.rglob("_*.pyi"))


def _name(stub: Path) -> str:
    return ".".join((PACKAGE.name, *stub.relative_to(PACKAGE).with_suffix("").parts))


def _is_compiled(stub: Path) -> bool:
    """Checks for the file and imports nothing, because a broker runs this when it starts."""
    return any(stub.with_name(stub.stem + suffix).exists() for suffix in EXTENSION_SUFFIXES)
