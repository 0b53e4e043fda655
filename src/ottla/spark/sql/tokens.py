"""Splits SQL into tokens and statements; a semicolon in a text or a comment does not end a statement. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ottla.spark.sql.failures import SqlError


class Kind(Enum):
    """The kinds of tokens."""

    NAME = "name"
    QUOTED = "quoted name"
    """In backticks."""
    TEXT = "text"
    """In single or double quotes."""
    NUMBER = "number"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a statement."""

    kind: Kind
    text: str
    """The token as it was written, with its quotes."""
    start: int
    end: int

    @property
    def value(self) -> str:
        """The token without quotes and escapes."""
        if self.kind is Kind.QUOTED:
            return self.text[1:-1].replace("``", "`")
        if self.kind is Kind.TEXT:
            return _unescaped(self.text)
        return self.text

    def is_word(self, *words: str) -> bool:
        """Returns whether this is one of these words, given in upper case. A quoted name never is."""
        return self.kind is Kind.NAME and self.text.upper() in words

    def is_symbol(self, text: str) -> bool:
        """Returns whether this is the symbol."""
        return self.kind is Kind.SYMBOL and self.text == text


_PATTERN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>--[^\n]*|/\*.*?\*/)
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\w*)
    | (?P<name>[^\W\d]\w*)
    | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_KINDS = {
    "quoted": Kind.QUOTED,
    "text": Kind.TEXT,
    "number": Kind.NUMBER,
    "name": Kind.NAME,
    "symbol": Kind.SYMBOL,
}
_UNENDED = {"'": "a string", '"': "a string", "`": "a name in backticks"}


def tokens_of(text: str, start: int = 0, end: int | None = None) -> list[Token]:
    """Returns the tokens without spaces and comments. Raises SqlError for an unterminated quote or comment."""
    return list(_tokens(text, start, len(text) if end is None else end))


def _tokens(text: str, position: int, end: int) -> Iterator[Token]:
    while position < end:
        found = _PATTERN.match(text, position, end)
        if found is None or found.lastgroup is None:  # the last alternative matches any character
            raise SqlError("unexpected character", text, position)
        kind, piece = _KINDS.get(found.lastgroup), found.group()
        if kind is Kind.SYMBOL:
            if piece in _UNENDED:
                raise SqlError(f"{_UNENDED[piece]} starts here and does not end", text, position)
            if piece == "/" and text.startswith("/*", position):
                raise SqlError("a comment starts here and does not end", text, position)
        if kind is not None:
            yield Token(kind, piece, position, found.end())
        position = found.end()


def statements_of(text: str) -> list[list[Token]]:
    """Returns the tokens of each statement, without the semicolons between them."""
    found: list[list[Token]] = [[]]
    for token in tokens_of(text):
        if token.is_symbol(";"):
            found.append([])
        else:
            found[-1].append(token)
    return [each for each in found if each]


def is_ended(text: str) -> bool:
    """Returns whether a prompt has a complete statement: the last token is a semicolon. Open quotes wait for more."""
    try:
        found = tokens_of(text)
    except SqlError:
        return False
    return bool(found) and found[-1].is_symbol(";")


def normal_text(tokens: list[Token]) -> str:
    """Returns a text that is the same for two statements that differ only in spaces and comments."""
    return " ".join(token.text for token in tokens)


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b"}


def _unescaped(text: str) -> str:
    quote, inside = text[0], text[1:-1]

    def plain(found: re.Match[str]) -> str:
        piece = found.group()
        return quote if piece == quote * 2 else _ESCAPES.get(piece[1], piece[1])

    return re.sub(r"\\." + f"|{quote}{quote}", plain, inside, flags=re.DOTALL)
