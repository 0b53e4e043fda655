"""Finds the line of a key in a TOML file, which the standard library's parser does not report."""

from __future__ import annotations

import re
from collections.abc import Mapping

Path = tuple[str | int, ...]
"""Tables and keys from the top; a number is the index in an array of tables."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def lines_of_keys(text: str) -> dict[Path, int]:
    """Returns the line of every table and key that begins a line."""
    found: dict[Path, int] = {}
    table: Path = ()
    counts: dict[Path, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) is not None:
            table = _parts(header.group(2))
            if header.group(1) == "[[":
                at = counts.get(table, -1) + 1
                counts[table] = at
                table = (*table, at)
            found.setdefault(table, number)
        elif (key := _KEY.match(line)) is not None:
            path = (*table, *_parts(key.group(1)))
            for end in range(len(table) + 1, len(path) + 1):
                found.setdefault(path[:end], number)
    return found


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """Returns the line of the key, or of the innermost table that contains it."""
    for end in range(len(path), 0, -1):
        if (line := lines.get(path[:end])) is not None:
            return line
    return None


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
