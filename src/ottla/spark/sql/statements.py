"""The statements of `ottla sql`. The body of a SELECT stays text, which Spark parses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a stream."""

    name: str
    type: str
    """In Spark's notation: BIGINT, STRUCT<a: STRING>."""
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Watermark:
    """WATERMARK FOR column DELAY delay."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Select:
    """The body of a SELECT."""

    body: str
    """The text up to the end of the SELECT. The text before it is replaced by spaces, so that positions are correct."""
    names: frozenset[str]
    """All names in it, in lower case, to find the columns of the record itself that it may use."""


@dataclass(frozen=True, slots=True)
class Options:
    """WITH (name = value, ...), by lower-case name."""

    values: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict, compare=False)

    def get(self, name: str) -> str | None:
        """Returns the value of an option, or None. The name is in lower case."""
        return self.values.get(name)


@dataclass(frozen=True, slots=True)
class CreateStream:
    """Declares the columns of an existing topic."""

    name: str
    columns: tuple[Column, ...]
    watermark: Watermark | None
    options: Options
    normal: str
    position: int = field(compare=False, default=0)
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateAs:
    """A continuous query that writes a stream, or upserts a table."""

    name: str
    is_table: bool
    options: Options
    select: Select
    normal: str
    """The statement for comparison: without comments, with one space between tokens."""
    source: str = field(compare=False)
    """The statement as it was written."""
    position: int = field(compare=False, default=0)
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    """A continuous query that writes to an existing topic."""

    into: str
    options: Options
    select: Select
    normal: str
    """The statement for comparison: without comments, with one space between tokens."""
    source: str = field(compare=False)
    """The statement as it was written."""
    position: int = field(compare=False, default=0)


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW STREAMS, TABLES, TOPICS or QUERIES."""

    what: str
    """STREAMS, TABLES, TOPICS or QUERIES."""


@dataclass(frozen=True, slots=True)
class Describe:
    """DESCRIBE name."""

    name: str
    position: int = field(compare=False, default=0)


@dataclass(frozen=True, slots=True)
class Drop:
    """DROP STREAM, TABLE or QUERY name."""

    kind: str
    """STREAM, TABLE or QUERY."""
    name: str
    if_exists: bool = False
    position: int = field(compare=False, default=0)


@dataclass(frozen=True, slots=True)
class Resume:
    """Runs defined queries: the named one, or all."""

    name: str | None
    position: int = field(compare=False, default=0)


Statement = Select | CreateStream | CreateAs | Insert | Show | Describe | Drop | Resume
