"""The history of transactions on logs: what clients did, what they saw, and the committed contents at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

NEVER = float("inf")

Key = str
"""A log, such as a partition."""
Value = str
"""What is appended. No two appends have the same value."""


class Outcome(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    """No commit was requested, or the request was rejected."""
    UNKNOWN = "unknown"
    """A commit was requested, and the client does not know its outcome."""


class Append(NamedTuple):
    key: Key
    value: Value
    began: float
    ended: float = NEVER
    """NEVER if it was not acknowledged."""
    offset: int | None = None


class Read(NamedTuple):
    """A read of committed records from a position up to another one."""

    key: Key
    first: int
    """The position at which it began."""
    end: int
    """The position after it."""
    records: tuple[tuple[int, Value], ...]
    began: float
    ended: float
    is_to_the_end: bool = False
    """Whether the reader took everything up to the end that it was told."""
    group: str = ""
    """The group whose offsets the transaction commits, so that each record is processed by one transaction."""


Operation = Append | Read


@dataclass(slots=True)
class Transaction:
    """Operations in the order of their calls. A reader outside of transactions is a committed one without appends."""

    name: str
    operations: list[Operation] = field(default_factory=list)
    outcome: Outcome = Outcome.ABORTED
    commit_began: float = NEVER
    commit_ended: float = NEVER

    @property
    def appends(self) -> list[Append]:
        return [each for each in self.operations if isinstance(each, Append)]

    @property
    def reads(self) -> list[Read]:
        return [each for each in self.operations if isinstance(each, Read)]

    def __str__(self) -> str:
        return f"{self.name} ({self.outcome})"


Log = Sequence[tuple[int, Value]]
"""Offsets and values in ascending order."""


@dataclass(slots=True)
class History:
    transactions: Sequence[Transaction]
    logs: Mapping[Key, Log]
    """The committed contents after the last operation. A log that nobody read at the end is missing here."""
