"""Mutants of a Cython module. Python's parser does not read Cython, so they are found by lines and tokens.

Strings and comments are blanked out first, with the same length, so that a position in the blanked text is one in the
source. Some mutants do not compile, for example because two swapped arguments have different C types; they are not
counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import NamedTuple

from tests.mutation.mutants import Edit, Mutant, distinct
from tests.mutation.vocabulary import COMMUTATIVE, COMPARISONS, is_sync, others_of_its_kind

STRING_OR_COMMENT = re.compile(rb'"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|\#[^\n]*', re.DOTALL)
FUNCTION = re.compile(rb"\s*(?:cpdef|cdef|async\s+def|def)\b[^=\n]*?(\w+)\s*\(")
CLASS = re.compile(rb"\s*(?:cdef\s+)?class\s+(\w+)")
DECLARATION = re.compile(rb"\s*(?:cpdef|cdef|ctypedef|cimport|from|import|enum)\b")
EXTERN = re.compile(rb"\s*(?:cdef\s+extern\b|cdef\s+struct\b|cdef\s+enum\b|ctypedef\s+struct\b)")
COMPARISON = re.compile(rb"(?<= )(<=|>=|<|>)(?= )")
ONE = re.compile(rb" [+-] 1(?![\w.])")
GUARD = re.compile(rb"(\s*)if (.+):[ \t]*(return|raise|continue|break)?[^\n]*$")
LEAVING = re.compile(rb"\s*(?:return|raise|continue|break)\b")
CALL = re.compile(rb"(\w+)\(")
CALL_STATEMENT = re.compile(rb"\s*[\w.]+\(.*\)\s*$")
ATTRIBUTE = re.compile(rb"(?<=\.)\w+\b(?!\()")


class _Line(NamedTuple):
    number: int
    start: int
    """The position of the line in the source."""
    text: bytes
    """Without strings and comments."""
    raw: bytes
    function: str

    @property
    def indentation(self) -> int:
        return len(self.text) - len(self.text.lstrip())


def mutants_of(module: str, source: bytes) -> list[Mutant]:
    """Returns all mutants of a module."""
    lines = list(_statements(source))
    found: list[Mutant] = []
    for line, following in zip_longest(lines, lines[1:]):
        for operator, edits in _of_line(line, following):
            found.append(Mutant(module, operator, line.function, line.number, edits, source))
    return distinct(found)


def blanked(source: bytes) -> bytes:
    """Returns the source with comments and docstrings replaced by spaces, and strings by underscores."""
    return STRING_OR_COMMENT.sub(_blank, source)


def _blank(match: re.Match[bytes]) -> bytes:
    text = match.group()
    return re.sub(rb"[^\n]", b" " if text.startswith((b"#", b'"""')) else b"_", text)


def _statements(source: bytes) -> Iterator[_Line]:
    """Yields the lines inside of functions, without declarations."""
    start = 0
    scopes: list[tuple[int, str, bool]] = []
    """Indentation and name of the classes and functions around a line, and whether it is a function."""
    extern: int | None = None
    open_brackets = 0
    for number, text in enumerate(blanked(source).splitlines(keepends=True), 1):
        line_start, start = start, start + len(text)
        text = text.rstrip()
        if not text:
            continue
        continues, open_brackets = open_brackets > 0, open_brackets + _opened(text)
        if continues:
            continue
        indentation = len(text) - len(text.lstrip())
        if extern is not None and indentation > extern:
            continue
        extern = indentation if EXTERN.match(text) else None
        while scopes and scopes[-1][0] >= indentation:
            scopes.pop()
        opening = CLASS.match(text) or FUNCTION.match(text)
        if opening is not None and text.rstrip().endswith((b":", b"(", b",")):
            scopes.append((indentation, opening.group(1).decode(), CLASS.match(text) is None))
        elif scopes and scopes[-1][2] and not DECLARATION.match(text) and open_brackets == 0:
            raw = source[line_start : line_start + len(text)]
            yield _Line(number, line_start, text, raw, ".".join(name for _, name, _ in scopes))


def _opened(text: bytes) -> int:
    return sum(text.count(each) for each in (b"(", b"[", b"{")) - sum(text.count(each) for each in (b")", b"]", b"}"))


def _of_line(line: _Line, following: _Line | None) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    text, start = line.text, line.start
    for match in COMPARISON.finditer(text):
        other = COMPARISONS[match.group().decode()].encode()
        yield "off-by-one", (Edit(start + match.start(), start + match.end(), other),)
    for match in ONE.finditer(text):
        yield "off-by-one", (Edit(start + match.start(), start + match.end(), b""),)
    yield from _guards(line, following)
    yield from _calls(line)
    for match in ATTRIBUTE.finditer(text):
        for name in others_of_its_kind(match.group().decode()):
            yield "replace-attribute", (Edit(start + match.start(), start + match.end(), name.encode()),)
    is_beside = following is not None and line.indentation == following.indentation
    if is_beside and following is not None and CALL_STATEMENT.match(text) and CALL_STATEMENT.match(following.text):
        yield "swap-statements", _swapped(start, line.raw, following.start, following.raw)


def _swapped(one_start: int, one: bytes, other_start: int, other: bytes) -> tuple[Edit, ...]:
    return (
        Edit(one_start, one_start + len(one), other),
        Edit(other_start, other_start + len(other), one),
    )


def _guards(line: _Line, following: _Line | None) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    match = GUARD.match(line.text)
    if match is None:
        return
    start, end = line.start + match.start(2), line.start + match.end(2)
    leaves = match.group(3) is not None or (
        following is not None and following.indentation > line.indentation and LEAVING.match(following.text) is not None
    )
    if leaves:
        yield "remove-guard", (Edit(start, end, b"False"),)
    yield "negate-condition", (Edit(start, start, b"not ("), Edit(end, end, b")"))


def _calls(line: _Line) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    for match in CALL.finditer(line.text):
        name = match.group(1).decode()
        arguments = list(_arguments(line.text, match.end()))
        if is_sync(name) and arguments:
            before = re.search(rb"[\w.]*$", line.text[: match.start()])
            assert before is not None
            end = arguments[-1][1] + 1
            yield "drop-sync", (Edit(line.start + before.start(), line.start + end, b"0"),)
        if name in COMMUTATIVE:
            continue
        for (start, end), (next_start, next_end) in pairwise(arguments):
            one, other = line.raw[start:end], line.raw[next_start:next_end]
            if one.strip() and other.strip():
                yield "swap-arguments", _swapped(line.start + start, one, line.start + next_start, other)


def _arguments(text: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yields the spans of the arguments of a call whose opening bracket ends at `start`."""
    depth, begin = 1, start
    for place in range(start, len(text)):
        character = text[place : place + 1]
        if character in b"([{":
            depth += 1
        elif character in b")]}":
            depth -= 1
        if depth == 0 or (depth == 1 and character == b","):
            stripped = text[begin:place]
            left = begin + len(stripped) - len(stripped.lstrip())
            yield left, begin + len(stripped.rstrip())
            begin = place + 1
        if depth == 0:
            return
