"""Names are descriptive, and layers import only lower layers.

import-linter checks the layers of Python modules; it does not read Cython, so that part is here.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.tidy.tree import lines, package_sources, relative, sources

NAMES_THAT_SAY_NOTHING = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "misc", "stuff"})
PURE_LAYERS = ("protocol", "machines")
IMPURE_MODULES = ("asyncio", "time", "random", "os", "socket", "threading", "uvloop")
IMPORT = re.compile(r"^\s*(?:from|c?import)\s+([\w.]+)")


def test_no_module_is_named_after_nothing() -> None:
    bad = [relative(path) for path in sources() if NAMES_THAT_SAY_NOTHING & set(re.split(r"[/_.]", relative(path)))]
    assert not bad, f"say what these modules are for in their names: {bad}"


def test_pure_layers_know_no_clock_thread_socket_or_system() -> None:
    bad = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in package_sources()
        if layer(path) in PURE_LAYERS
        for number, line in enumerate(lines(path), 1)
        if (found := IMPORT.match(line)) and found.group(1).split(".")[0] in IMPURE_MODULES
    ]
    assert not bad, "\n".join(bad)


def test_modules_say_what_they_are_for() -> None:
    silent = [
        relative(path)
        for path in package_sources()
        if path.suffix in {".py", ".pyx"} and '"""' not in "\n".join(lines(path)[:8])
    ]
    assert not silent, f"these modules have no docstring: {silent}"


def layer(path: Path) -> str:
    return Path(relative(path)).parts[2]
