"""The order that the observations of a history imply, as a graph whose cycles are contradictions.

Each append, read and commit takes effect at one moment between its request and its reply. These moments are the nodes.
The edges are facts about their order:

    ww      the appends of one log are in the order of its offsets
    wr      a value is read after its transaction is committed
    own     a transaction is committed after its own appends and reads
    before  an operation that has ended precedes every operation that begins later

The last kind has one edge for each pair of operations, so the graph has nodes for points in time instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tests.support.anomalies.cycles import short_cycle
from tests.support.anomalies.history import NEVER, Append, Key, Operation, Read, Transaction, Value


class Moment(NamedTuple):
    """The moment at which an operation, or the commit of its transaction (None), takes effect."""

    transaction: str
    operation: Operation | None
    began: float
    ended: float

    def __str__(self) -> str:
        what = self.operation
        if what is None:
            return f"the commit of {self.transaction}"
        if isinstance(what, Append):
            return f"the append of {what.value} to {what.key} by {self.transaction}"
        return f"the read of {what.key} from {what.first} to {what.end} by {self.transaction}"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A cycle of moments, each with the reason why it precedes the next one."""

    steps: tuple[tuple[Moment, str], ...]

    @property
    def has_read(self) -> bool:
        """Whether information flows in it: a transaction read what another one appended."""
        return any(reason.startswith("wr") for _, reason in self.steps)

    def __str__(self) -> str:
        return "; ".join(f"{moment} precedes the next ({reason})" for moment, reason in self.steps)


Places = Mapping[Key, Mapping[int, Value]]
Visible = Mapping[Value, Transaction]


def contradiction(transactions: Iterable[Transaction], places: Places, visible: Visible) -> Contradiction | None:
    """Returns a cycle of the order. `places` has the values of each log by offset, those of aborted transactions too;
    `visible` has the transactions that readers can have seen, by value."""
    return _Order(list(transactions), places, visible).contradiction()


class _Order:
    def __init__(self, transactions: list[Transaction], places: Places, visible: Visible) -> None:
        self._moments: list[Moment] = []
        self._successors: defaultdict[int, list[int]] = defaultdict(list)
        """By index of the moment. Negative numbers are points in time, -1 the first."""
        self._reasons: dict[tuple[int, int], str] = {}
        self._appends: dict[Value, int] = {}
        self._commits: dict[str, int] = {}
        reads: list[int] = []
        committed = {id(each) for each in visible.values()}
        for transaction in transactions:
            reads += self._add(transaction, is_visible=id(transaction) in committed)
        self._order_appends(places)
        for read in reads:
            self._order_read(read, visible)
        self._order_times()

    def _add(self, transaction: Transaction, *, is_visible: bool) -> Iterator[int]:
        """Adds the moments of a transaction, and yields those of its reads."""
        own: list[int] = []
        for operation in transaction.operations:
            number = self._new(Moment(transaction.name, operation, operation.began, operation.ended))
            own.append(number)
            if isinstance(operation, Append):
                self._appends[operation.value] = number
            else:
                yield number
        if is_visible:
            commit = Moment(transaction.name, None, transaction.commit_began, transaction.commit_ended)
            self._commits[transaction.name] = number = self._new(commit)
            for each in own:
                self._edge(each, number, "own: it is part of the transaction")

    def _new(self, moment: Moment) -> int:
        self._moments.append(moment)
        return len(self._moments) - 1

    def _edge(self, first: int, second: int, reason: str) -> None:
        self._successors[first].append(second)
        self._reasons[first, second] = reason

    def _order_appends(self, places: Places) -> None:
        for key, values in places.items():
            known = [(offset, value) for offset, value in sorted(values.items()) if value in self._appends]
            for (first, one), (second, other) in pairwise(known):
                reason = f"ww: they are at {first} and {second} of {key}"
                self._edge(self._appends[one], self._appends[other], reason)

    def _order_read(self, number: int, visible: Visible) -> None:
        read = self._moments[number].operation
        assert isinstance(read, Read)
        seen: set[str] = set()
        for _, value in read.records:
            writer = visible.get(value)
            if writer is not None and writer.name not in seen and writer.name in self._commits:
                seen.add(writer.name)
                self._edge(self._commits[writer.name], number, f"wr: the read returned {value}")

    def _order_times(self) -> None:
        """Adds points in time: an operation that ended precedes a point, which precedes what begins after it."""
        ends = sorted({moment.ended for moment in self._moments if moment.ended < NEVER})
        for point, _ in enumerate(ends[1:], 1):
            self._successors[-point].append(-point - 1)
        at = {time: -point for point, time in enumerate(ends, 1)}
        for number, moment in enumerate(self._moments):
            if moment.ended < NEVER:
                self._successors[number].append(at[moment.ended])
            point = bisect_left(ends, moment.began)
            if moment.began < NEVER and point:
                self._successors[-point].append(number)

    def contradiction(self) -> Contradiction | None:
        cycle = short_cycle(self._successors)
        numbers = [node for node in cycle if node >= 0]
        if not numbers:
            return None
        steps = []
        for first, second in pairwise([*numbers, numbers[0]]):
            reason = self._reasons.get((first, second), "before: it had ended when the next one began")
            steps.append((self._moments[first], reason))
        return Contradiction(tuple(steps))
