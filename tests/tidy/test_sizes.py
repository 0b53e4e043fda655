"""A function fits on one screen, a module on a few."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.tree import lines, relative, sources

LINE_LENGTH_MAX = 120
FUNCTION_LINES_MAX = 70
MODULE_LINES_WARN = 300
MODULE_LINES_MAX = 600
NOTED_MAX = 5

SUPPRESSION = re.compile(r"\s*# (?:noqa|type: ignore).*$")
CYTHON_FUNCTION = re.compile(r"^(\s*)(?:cpdef|cdef|async def|def)\b[^=]*\(.*")


def test_lines_fit() -> None:
    """A suppression with its reason does not count, as with ruff."""
    long = [
        f"{relative(path)}:{number}: {len(line)} characters"
        for path in sources()
        for number, line in enumerate(lines(path), 1)
        if len(SUPPRESSION.sub("", line)) > LINE_LENGTH_MAX
    ]
    assert not long, "\n".join(long)


def test_modules_are_short() -> None:
    """A module above the first limit gets a warning, one above the second has to be split."""
    sizes = {relative(path): len(lines(path)) for path in sources()}
    noted = sorted(((count, name) for name, count in sizes.items() if count > MODULE_LINES_WARN), reverse=True)
    if noted:
        longest = ", ".join(f"{name} ({count})" for count, name in noted[:NOTED_MAX])
        warnings.warn(f"{len(noted)} modules have more than {MODULE_LINES_WARN} lines: {longest}, ...", stacklevel=1)
    long = [f"{name}: {count} lines" for name, count in sizes.items() if count > MODULE_LINES_MAX]
    assert not long, "\n".join(long)


def test_functions_are_short() -> None:
    long = [
        f"{relative(path)}:{start}: {name} has {length} lines"
        for path in sources()
        for name, start, length in functions(path)
        if length > FUNCTION_LINES_MAX
    ]
    assert not long, "\n".join(long)


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, first line and length of each function."""
    if path.suffix == ".pyx":
        yield from cython_functions(lines(path))
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def cython_functions(source: list[str]) -> Iterator[tuple[str, int, int]]:
    """By indentation: a function ends before the first line that is not indented deeper than its first line."""
    for start, line in enumerate(source):
        found = CYTHON_FUNCTION.match(line)
        if found is None:
            continue
        depth = len(found.group(1))
        last = start
        for index in range(start + 1, len(source)):
            text = source[index]
            if text.strip() and not text.lstrip().startswith((")", "#")):
                if len(text) - len(text.lstrip()) <= depth:
                    break
                last = index
        yield line.strip(), start + 1, last - start + 1
