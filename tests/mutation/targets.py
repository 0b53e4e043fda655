"""The modules that protect data, and their mutants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.mutation import cython_operators, python_operators
from tests.mutation.mutants import Mutant
from tests.mutation.vocabulary import KnownAttributes, known_attributes

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "src/ottla/broker/partition",
    "src/ottla/broker/storage",
    "src/ottla/broker/adapters",
    "src/ottla/broker/topics/housekeeping.py",
    "src/ottla/broker/app.py",
    "src/ottla/machines",
    "src/ottla/protocol/records",
    "src/ottla/coordination",
)
"""Housekeeping and app connect the others: which offset retention and compaction get, what is flushed before what."""


class NoSuchModuleError(Exception):
    """A name is none of a source file, a folder or a module."""


def modules(names: Sequence[str] = ()) -> list[str]:
    """Returns the paths of the named modules, relative to the repository; by default those that protect data. A name is
    a path of a file or a folder, or the dotted name of a module."""
    found: set[Path] = set()
    for name in names or PLACES:
        path = ROOT / name
        if not path.exists():
            dotted = ROOT / "src" / name.replace(".", "/")
            endings = ("", ".py", ".pyx")
            path = next((each for end in endings if (each := Path(f"{dotted}{end}")).exists()), path)
        if not path.exists():
            raise NoSuchModuleError(f"there is no module {name}")
        found.update([path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.pyx")])
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def mutants_of(module: str) -> list[Mutant]:
    source = (ROOT / module).read_bytes()
    if module.endswith(".pyx"):
        return cython_operators.mutants_of(module, source)
    return python_operators.mutants_of(module, source, _known_attributes())


@cache
def _known_attributes() -> KnownAttributes:
    paths = sorted((ROOT / "src").rglob("*.py"))
    return known_attributes((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths)
