"""Errors in statements, with their positions."""

from __future__ import annotations

from ottla.archive.failures import PipelineError


class SqlError(PipelineError):
    """A statement cannot be run. With a text and a position, the message shows the place."""

    def __init__(self, sentence: str, text: str | None = None, position: int | None = None) -> None:
        self.sentence = sentence
        self.text = text
        self.position = position
        super().__init__(sentence if text is None or position is None else with_place(sentence, text, position))


def with_place(sentence: str, text: str, position: int) -> str:
    """Returns `line 2, column 5: ...`, followed by the line and a mark below the position."""
    line, column = place(text, position)
    source = text.split("\n")[line - 1]
    mark = "".join("\t" if each == "\t" else " " for each in source[: column - 1])
    return f"line {line}, column {column}: {sentence}\n  {source}\n  {mark}^"


def place(text: str, position: int) -> tuple[int, int]:
    """Returns the line and the column, both from 1."""
    position = max(0, min(position, len(text)))
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
