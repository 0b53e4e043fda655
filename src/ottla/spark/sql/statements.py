"""The statements that `ottla sql` knows. Bodies of SELECT stay text: Spark reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    """As Spark writes types: BIGINT, STRUCT<a: STRING>."""
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Select:
    body: str
    """The text up to the end of the SELECT, with what is before it blanked, so that places in it are right."""
    names: frozenset[str]
    """All names in it, in lower case: which of the record's own columns it may mean."""


@dataclass(frozen=True, slots=True)
class Options:
    """WITH (name = value, ...), by lower-case name."""

    values: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict, compare=False)

    def get(self, name: str) -> str | None:
        return self.values.get(name)


@dataclass(frozen=True, slots=True)
class CreateStream:
    """A topic that is there, with its columns."""

    name: str
    columns: tuple[Column, ...]
    watermark: Watermark | None
    options: Options
    normal: str
    position: int = field(compare=False, default=0)
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateAs:
    """A query that goes on: into a stream, or with upserts into a table."""

    name: str
    is_table: bool
    options: Options
    select: Select
    normal: str
    """To compare it with: without comments, one space between any two tokens."""
    source: str = field(compare=False)
    """As it was written."""
    position: int = field(compare=False, default=0)
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    into: str
    options: Options
    select: Select
    normal: str
    """To compare it with: without comments, one space between any two tokens."""
    source: str = field(compare=False)
    """As it was written."""
    position: int = field(compare=False, default=0)


@dataclass(frozen=True, slots=True)
class Show:
    what: str
    """STREAMS, TABLES, TOPICS or QUERIES."""


@dataclass(frozen=True, slots=True)
class Describe:
    name: str
    position: int = field(compare=False, default=0)


@dataclass(frozen=True, slots=True)
class Drop:
    kind: str
    """STREAM, TABLE or QUERY."""
    name: str
    if_exists: bool = False
    position: int = field(compare=False, default=0)


@dataclass(frozen=True, slots=True)
class Resume:
    """Runs queries that are defined: the one that is named, or all."""

    name: str | None
    position: int = field(compare=False, default=0)


Statement = Select | CreateStream | CreateAs | Insert | Show | Describe | Drop | Resume
