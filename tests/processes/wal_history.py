"""Checks the linearizability of what clients of a write-ahead log observed, with a model.

The model is a list: appends and fences add to its end, a conditional append checks the end first, a tail only reads it.
The log itself gives the order in which appends took effect, so no search is needed: each operation has its place in
that order (an append at its offset; a rejection or a tail at the end that was returned). The checks are that every
place agrees with the operation's result, and that no operation precedes one that had ended before it began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

NEVER = float("inf")

Kind = Literal["append", "fence", "tail"]
Outcome = Literal["done", "unexpected end", "fenced", "refused", "unknown"]


@dataclass(slots=True)
class Operation:
    kind: Kind
    writer: str
    began_s: float
    ended_s: float = NEVER
    outcome: Outcome = "unknown"
    value: bytes = b""
    expected_end: int | None = None
    epoch: int = 0
    """The writer's epoch; for a fence, the epoch that it returned."""
    offset: int = -1
    """The record's offset; for a rejection or a tail, the end that was returned."""
    count: int = 1
    handle: int = 0
    """The handle of the append; the log preserves the order of its calls. 0: unspecified."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an operation in the log's order: appends occupy an offset, reads do not."""

    first: int
    end: int
    operation: Operation


def violations(history: Sequence[Operation], log: Sequence[tuple[int, bytes]]) -> list[str]:
    """Returns descriptions of the violations. `log` is everything that a reader found at the end."""
    at = {value: offset for offset, value in log}
    counts = Counter(value for _, value in log)
    found = [f"{value!r} is in the log twice" for value, count in counts.items() if count > 1]
    by_value = {operation.value: operation for operation in history if operation.kind == "append"}
    found += [f"{value!r} is in the log, and nobody wrote it" for value in at if value not in by_value]
    places: list[Place] = []
    for operation in history:
        found += _wrong_outcome(operation, at)
        place = _place(operation, at)
        if place is not None:
            places.append(place)
    found += _out_of_time(places)
    found += _out_of_order(history, at)
    found += _epochs(history, at)
    return found


def _wrong_outcome(operation: Operation, at: dict[bytes, int]) -> Iterator[str]:
    """Compares the result of one operation with the log."""
    where = at.get(operation.value) if operation.kind == "append" else None
    if operation.kind == "append" and operation.outcome == "done":
        if where is None:
            yield f"lost: {operation.value!r} was acknowledged at {operation.offset} and is not in the log"
        elif where != operation.offset:
            yield f"{operation.value!r} was acknowledged at {operation.offset} and is at {where}"
        if operation.expected_end is not None and operation.offset != operation.expected_end:
            yield f"{operation.value!r} expected the end {operation.expected_end} and was put at {operation.offset}"
    if (
        operation.kind == "append"
        and operation.outcome in ("unexpected end", "fenced", "refused")
        and where is not None
    ):
        yield f"{operation.value!r} was refused ({operation.outcome}) and is in the log at {where}"
    if operation.outcome == "unexpected end" and operation.kind == "append" and operation.expected_end is None:
        yield f"{operation.value!r} was refused for the log's end, and expected none"
    if operation.outcome == "unexpected end" and operation.offset == operation.expected_end:
        yield f"{operation.value!r} was refused for the end {operation.offset}, which is what it expected"


def _place(operation: Operation, at: dict[bytes, int]) -> Place | None:
    if operation.outcome == "done" and operation.kind != "tail":
        return Place(operation.offset, operation.offset + operation.count, operation)
    if operation.outcome == "unexpected end" or (operation.kind == "tail" and operation.outcome == "done"):
        return Place(operation.offset, operation.offset, operation)
    if operation.kind == "append" and operation.outcome == "unknown" and operation.value in at:
        offset = at[operation.value]
        return Place(offset, offset + operation.count, operation)
    return None


def _out_of_time(places: Sequence[Place]) -> Iterator[str]:
    """Checks that an operation that ended before another began precedes it."""
    ended = sorted(
        (place for place in places if place.operation.ended_s < NEVER), key=lambda each: each.operation.ended_s
    )
    furthest: Place | None = None
    next_ended = 0
    for place in sorted(places, key=lambda each: each.operation.began_s):
        while next_ended < len(ended) and ended[next_ended].operation.ended_s < place.operation.began_s:
            if furthest is None or ended[next_ended].end > furthest.end:
                furthest = ended[next_ended]
            next_ended += 1
        if furthest is not None and furthest.end > place.first:
            yield (
                f"{_name(place)} stands at {place.first}, before {_name(furthest)}, which ends at {furthest.end} and "
                "was over before it began"
            )


def _out_of_order(history: Sequence[Operation], at: dict[bytes, int]) -> Iterator[str]:
    """Checks that the appends of one handle are in the order of its calls, including concurrent ones."""
    last: dict[int, Operation] = {}
    for operation in history:
        if operation.kind != "append" or not operation.handle or operation.value not in at:
            continue
        before = last.get(operation.handle)
        if before is not None and at[before.value] > at[operation.value]:
            places = at[operation.value], at[before.value]
            yield f"{operation.value!r} was appended after {before.value!r}; they are at {places[0]} and {places[1]}"
        last[operation.handle] = operation


def _epochs(history: Sequence[Operation], at: dict[bytes, int]) -> Iterator[str]:
    """Checks that all records between two fences are of the first fence's writer."""
    fences = sorted(
        (operation for operation in history if operation.kind == "fence" and operation.outcome == "done"),
        key=lambda each: each.offset,
    )
    for before, after in pairwise(fences):
        if after.epoch <= before.epoch:
            yield f"the fence at {after.offset} has the epoch {after.epoch}, that at {before.offset} {before.epoch}"
    offsets = [fence.offset for fence in fences]
    for operation in history:
        if operation.kind != "append" or operation.value not in at:
            continue
        offset = at[operation.value]
        count = bisect_left(offsets, offset)
        last = fences[count - 1] if count else None
        # A fence whose reply was lost may be in between; it has a later epoch than the last known one.
        if last is not None and operation.epoch < last.epoch:
            yield f"{operation.value!r} of epoch {operation.epoch} is at {offset}, behind the fence of {last.epoch}"


def _name(place: Place) -> str:
    operation = place.operation
    return f"{operation.kind} of {operation.writer}" + (f" ({operation.value!r})" if operation.value else "")
