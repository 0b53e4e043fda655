"""Which of the compiled extensions are present. Where one is missing, its plain Python twin is used."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ADVICE = (
    "Install a C compiler and the headers of Python (Debian and Ubuntu: apt install build-essential python3-dev), then "
    "`pip install --force-reinstall --no-deps --no-cache-dir` what you installed before; in a clone, `make setup`."
)
PACKAGE = Path(__file__).parent


def extension_names() -> list[str]:
    """All of them, compiled or not."""
    return [_name(stub) for stub in _stubs()]


def missing_extensions() -> list[str]:
    return [_name(stub) for stub in _stubs() if not _is_compiled(stub)]


def missing_sentence() -> str | None:
    """For a log: that extensions are missing, and what to do. None if all of them are there."""
    missing = missing_extensions()
    if not missing:
        return None
    count = f"{len(missing)} of {len(extension_names())}"
    return f"{count} compiled extensions are missing: Ottla works, but is much slower. {ADVICE}"


def _stubs() -> list[Path]:
    """Each extension has a stub beside it, which unlike its source is part of a wheel."""
    return sorted(PACKAGE.rglob("_*.pyi"))


def _name(stub: Path) -> str:
    return ".".join((PACKAGE.name, *stub.relative_to(PACKAGE).with_suffix("").parts))


def _is_compiled(stub: Path) -> bool:
    """Looks for the file and imports nothing: a broker asks this when it starts."""
    return any(stub.with_name(stub.stem + suffix).exists() for suffix in EXTENSION_SUFFIXES)
