"""The compiled modules of the simulation: which of them are older than their sources, and how to run without them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

SIMULATION = Path(__file__).resolve().parents[2] / "src" / "ottla" / "sim"


def kernel_sources() -> list[Path]:
    """Returns the modules that are compiled: each has a .pxd beside it."""
    return sorted(path.with_suffix(".py") for path in SIMULATION.glob("*.pxd"))


def compiled_form_of(source: Path) -> Path | None:
    """Returns the compiled module that Python imports in place of the source, or None if it is not built."""
    candidates = (source.with_suffix(suffix) for suffix in EXTENSION_SUFFIXES)
    return next((path for path in candidates if path.exists()), None)


def stale_modules() -> list[str]:
    """Returns the names of the sources that were changed after they were compiled: the changes have no effect."""
    stale = []
    for source in kernel_sources():
        compiled = compiled_form_of(source)
        inputs = (source, source.with_suffix(".pxd"))
        if compiled is not None and max(path.stat().st_mtime for path in inputs) > compiled.stat().st_mtime:
            stale.append(source.name)
    return stale


def demand_fresh_kernel() -> None:
    """Raises RuntimeError if a module was changed after it was compiled."""
    if stale := stale_modules():
        raise RuntimeError(f"run `make setup`: changed since they were compiled: {', '.join(stale)}")


class PlainFinder(MetaPathFinder):
    """Finds the modules of the simulation as plain Python, also where they are compiled."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("ottla.sim."):
            return None
        return FileFinder(str(SIMULATION), (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(fullname)


def use_plain_python() -> None:
    """Makes later imports of the simulation's modules take their sources."""
    sys.meta_path.insert(0, PlainFinder())
