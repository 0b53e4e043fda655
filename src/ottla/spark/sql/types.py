"""Checks types without Spark, so that a declaration need not wait for a JVM. Pure."""

from __future__ import annotations

from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.tokens import Kind, Token, tokens_of

_PLAIN = frozenset(
    {
        "BOOLEAN",
        "TINYINT",
        "BYTE",
        "SMALLINT",
        "SHORT",
        "INT",
        "INTEGER",
        "BIGINT",
        "LONG",
        "FLOAT",
        "REAL",
        "DOUBLE",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_LTZ",
        "TIMESTAMP_NTZ",
        "STRING",
        "BINARY",
    }
)
_DECIMALS = frozenset({"DECIMAL", "DEC", "NUMERIC"})


def is_type(text: str) -> bool:
    """Returns whether the text is a type that a value can have."""
    try:
        tokens = tokens_of(text)
    except SqlError:
        return False
    return _type(tokens, 0) == len(tokens)


def _type(tokens: list[Token], at: int) -> int:
    """Returns where the type that begins here ends; -1 if there is none."""
    if at < 0 or at >= len(tokens) or tokens[at].kind is not Kind.NAME:
        return -1
    name = tokens[at].text.upper()
    if name == "ARRAY":
        return _symbol(tokens, _type(tokens, _symbol(tokens, at + 1, "<")), ">")
    if name == "MAP":
        key_end = _type(tokens, _symbol(tokens, at + 1, "<"))
        return _symbol(tokens, _type(tokens, _symbol(tokens, key_end, ",")), ">")
    if name == "STRUCT":
        return _fields(tokens, _symbol(tokens, at + 1, "<"))
    if name in _DECIMALS:
        return _precision(tokens, at + 2) if _symbol(tokens, at + 1, "(") > 0 else at + 1
    return at + 1 if name in _PLAIN else -1


def _fields(tokens: list[Token], at: int) -> int:
    while 0 <= at < len(tokens):
        if tokens[at].kind not in (Kind.NAME, Kind.QUOTED):
            return -1
        colon = _symbol(tokens, at + 1, ":")
        at = _type(tokens, colon if colon > 0 else at + 1)
        if (end := _symbol(tokens, at, ">")) > 0:
            return end
        at = _symbol(tokens, at, ",")
    return -1


def _precision(tokens: list[Token], at: int) -> int:
    texts = [each.text for each in tokens[at : at + 4]]
    if len(texts) >= 2 and texts[0].isdigit() and texts[1] == ")":
        return at + 2
    if len(texts) == 4 and texts[0].isdigit() and texts[1] == "," and texts[2].isdigit() and texts[3] == ")":
        return at + 4
    return -1


def _symbol(tokens: list[Token], at: int, symbol: str) -> int:
    return at + 1 if 0 <= at < len(tokens) and tokens[at].is_symbol(symbol) else -1
