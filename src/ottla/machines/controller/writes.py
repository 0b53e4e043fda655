"""Transactions to commit, and the packing of many changes into few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ottla.coordination.port import COMMIT_BYTES_MAX, OPERATIONS_MAX, Condition, Entry, Operation, Put


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction: it is applied only if all conditions hold."""

    conditions: tuple[Condition, ...]
    operations: tuple[Operation, ...]
    why: str
    """A description for the log."""

    def was_applied(self, entries: Mapping[str, Entry | None]) -> bool:
        """Decides, after an unknown outcome and a conflict, whether the entries of the conflict show this
        very write."""
        seen = [operation for operation in self.operations if operation.key in entries]
        return bool(seen) and all(_is_there(operation, entries[operation.key]) for operation in seen)


def _is_there(operation: Operation, entry: Entry | None) -> bool:
    if isinstance(operation, Put):
        return entry is not None and entry.value == operation.value
    return entry is None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one commit (at least 16 operations) and of one plan."""

    operations_max: int = OPERATIONS_MAX
    bytes_max: int = COMMIT_BYTES_MAX
    changes_max: int | None = None
    """Maximum number of partitions in one plan. A broker with many partitions to fail over plans repeatedly and serves
    other requests in between."""


class Packing:
    """Packs changes into as few writes as the limits allow, in order. Each write has the shared conditions."""

    def __init__(self, limits: Limits, shared: Iterable[Condition], why: Callable[[int], str]) -> None:
        self._limits = limits
        self._shared = {condition.key: condition for condition in shared}
        self._why = why
        self._writes: list[Write] = []
        self._begin()

    def _begin(self) -> None:
        self._conditions = dict(self._shared)
        self._operations: list[Operation] = []
        self._bytes = 0
        self._changes = 0

    def add(self, conditions: Iterable[Condition], operations: Iterable[Operation]) -> None:
        """Adds a change, which is never split."""
        wanted = {condition.key: condition for condition in conditions}
        added = list(operations)
        size = sum(len(operation.value) for operation in added if isinstance(operation, Put))
        if self._changes and not self._has_room(wanted, len(added), size):
            self._end()
        self._conditions |= wanted
        self._operations += added
        self._bytes += size
        self._changes += 1

    def _has_room(self, wanted: Mapping[str, Condition], operations: int, size: int) -> bool:
        most = self._limits.operations_max
        return (
            len(self._operations) + operations <= most
            and len(self._conditions) + sum(key not in self._conditions for key in wanted) <= most
            and self._bytes + size <= self._limits.bytes_max
        )

    def _end(self) -> None:
        self._writes.append(Write(tuple(self._conditions.values()), tuple(self._operations), self._why(self._changes)))
        self._begin()

    def writes(self) -> list[Write]:
        """Returns the packed writes."""
        if self._changes:
            self._end()
        return self._writes
