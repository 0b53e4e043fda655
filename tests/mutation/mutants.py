"""A mutant: edits of one source file, and what identifies it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Edit(NamedTuple):
    """Replaces the bytes from `start` to `end` of a source."""

    start: int
    end: int
    text: bytes


class Identity(NamedTuple):
    """Identifies a mutant as long as its lines and the name of its function stay the same."""

    module: str
    operator: str
    function: str
    source: str
    becomes: str


@dataclass(frozen=True)
class Mutant:
    """One bug in one module."""

    module: str
    """The path of the source, relative to the repository."""
    operator: str
    function: str
    """The qualified name of the function around the change, or an empty string."""
    line: int
    edits: tuple[Edit, ...]
    source: bytes

    @property
    def mutated(self) -> bytes:
        text = self.source
        for edit in sorted(self.edits, reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text

    @property
    def identity(self) -> Identity:
        start = self.source.rfind(b"\n", 0, min(edit.start for edit in self.edits)) + 1
        end = max(edit.end for edit in self.edits)
        line_end = self.source.find(b"\n", end)
        unchanged = len(self.source) - (line_end if line_end >= 0 else len(self.source))
        before, after = self.source[start:], self.mutated[start:]
        texts = (_joined(each[: len(each) - unchanged]) for each in (before, after))
        return Identity(self.module, self.operator, self.function, *texts)

    @property
    def diff(self) -> str:
        before, after = self._lines()
        return "\n".join(difflib.unified_diff(before, after, self.module, self.operator, lineterm="", n=2))

    def _lines(self) -> tuple[list[str], list[str]]:
        return self.source.decode().splitlines(), self.mutated.decode().splitlines()


def _joined(lines: bytes) -> str:
    """Returns lines without their indentation, so that a change of it does not change an identity."""
    return "\n".join(line.strip() for line in lines.decode().splitlines())


def distinct(mutants: Iterable[Mutant]) -> list[Mutant]:
    """Returns the mutants in the order of their lines, without repetitions and those that change nothing."""
    found: dict[frozenset[Edit], Mutant] = {}
    for mutant in sorted(mutants, key=lambda each: (each.line, each.operator, each.edits)):
        changes = frozenset(edit for edit in mutant.edits if mutant.source[edit.start : edit.end] != edit.text)
        if changes:
            found.setdefault(changes, mutant)
    return list(found.values())
