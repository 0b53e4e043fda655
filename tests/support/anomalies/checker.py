"""Finds the anomalies of a history. Pure: a history in, findings out."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from tests.support.anomalies.cycles import short_cycle
from tests.support.anomalies.history import Append, History, Key, Log, Outcome, Read, Transaction, Value
from tests.support.anomalies.order import contradiction


class Anomaly(StrEnum):
    """Anomalies, with Adya's names where they have one."""

    LOST = "lost append"
    """A value of a committed transaction, or one that was read, is not in the log at the end."""
    DUPLICATE = "duplicate append"
    """One value at two offsets."""
    INVENTED = "never appended"
    INCONSISTENT = "inconsistent offset"
    """Two values at one offset, or a value elsewhere than acknowledged."""
    ABORTED_READ = "G1a, aborted read"
    INTERMEDIATE_READ = "G1b, intermediate read"
    """A reader that took everything it could saw a part of a transaction's appends to a log."""
    CIRCULAR = "G1c, circular information flow"
    WRITE_CYCLE = "G0, write cycle"
    ORDER = "order against real time"
    """The order of a log contradicts the order in which operations ended and began."""
    TORN = "torn transaction"
    """In the end, a part of a transaction is there."""
    SKIPPED = "skipped"
    """A reader passed a committed value without getting it."""
    NON_MONOTONIC = "non-monotonic read"
    """A reader got an offset below its position, or offsets that do not ascend."""
    INTERNAL = "internal inconsistency"
    """A transaction read its own uncommitted value, or its appends to a log are not in the order of its calls."""
    PROCESSED_TWICE = "processed twice"
    """Two committed transactions of a group consumed one record."""
    UNPROCESSED = "unprocessed"
    """A committed record that no committed transaction of a group consumed."""


class Finding(NamedTuple):
    anomaly: Anomaly
    sentence: str

    def __str__(self) -> str:
        return f"{self.anomaly}: {self.sentence}"


def check(history: History, *, interleaved: bool = True, finished: Collection[tuple[str, Key]] = ()) -> list[Finding]:
    """Returns the anomalies. `interleaved`: appends of concurrent transactions may interleave, as Kafka's do.
    `finished` has the groups, with the logs they read, that have consumed everything."""
    return _Check(history, interleaved).run(finished)


class _Check:
    def __init__(self, history: History, interleaved: bool) -> None:
        self._transactions = history.transactions
        self._logs = history.logs
        self._interleaved = interleaved
        self._writers: dict[Value, tuple[Transaction, Append]] = {}
        self._places: defaultdict[Key, dict[int, Value]] = defaultdict(dict)
        """Values by offset as first observed, those of aborted transactions too."""
        self._present: dict[Value, int] = {value: offset for log in self._logs.values() for offset, value in log}
        self._visible: dict[Value, Transaction] = {}
        """The transactions of values that readers can have seen."""
        self._findings: dict[Finding, None] = {}

    def run(self, finished: Collection[tuple[str, Key]]) -> list[Finding]:
        for transaction in self._transactions:
            for append in transaction.appends:
                if append.value in self._writers:
                    raise ValueError(f"{append.value} is appended twice: the history says nothing then")
                self._writers[append.value] = transaction, append
        self._collect()
        for transaction in self._transactions:
            self._check_outcome(transaction)
            self._check_inside(transaction)
            for read in transaction.reads:
                self._check_read(transaction, read)
        self._check_groups(finished)
        self._check_cycles()
        return list(self._findings)

    def _found(self, anomaly: Anomaly, sentence: str) -> None:
        self._findings[Finding(anomaly, sentence)] = None

    # Places of values

    def _collect(self) -> None:
        for key, log in self._logs.items():
            self._see_all(key, log, "the log at the end")
        for transaction in self._transactions:
            for append in transaction.appends:
                if append.offset is not None:
                    self._see(append.key, append.offset, append.value, "its acknowledgement")
            for read in transaction.reads:
                self._see_all(read.key, read.records, transaction.name)

    def _see_all(self, key: Key, records: Log, by: str) -> None:
        for offset, value in records:
            self._see(key, offset, value, by)
            writer = self._writers.get(value)
            if writer is None or writer[1].key != key:
                self._found(Anomaly.INVENTED, f"{value} at {offset} of {key}, according to {by}")
            elif writer[0].outcome is Outcome.ABORTED:
                self._found(Anomaly.ABORTED_READ, f"{value} of {writer[0]} at {offset} of {key}, according to {by}")
            else:
                self._visible[value] = writer[0]

    def _see(self, key: Key, offset: int, value: Value, by: str) -> None:
        first = self._places[key].setdefault(offset, value)
        if first != value:
            self._found(Anomaly.INCONSISTENT, f"{offset} of {key} has {first} and, according to {by}, {value}")
        place = self._present.setdefault(value, offset)
        if place != offset:
            self._found(Anomaly.DUPLICATE, f"{value} is at {place} of {key} and, according to {by}, at {offset}")

    # Transactions

    def _check_outcome(self, transaction: Transaction) -> None:
        appends = [each for each in transaction.appends if each.key in self._logs]
        missing = [each for each in appends if self._is_gone(each)]
        if transaction.outcome is Outcome.COMMITTED:
            for append in missing:
                self._found(Anomaly.LOST, f"{append.value} of {transaction} is not in {append.key}")
        elif transaction.outcome is Outcome.UNKNOWN and missing and len(missing) < len(appends):
            names = ", ".join(f"{each.value} in {each.key}" for each in missing)
            self._found(Anomaly.TORN, f"of {transaction}, {len(appends) - len(missing)} are there, but not {names}")

    def _is_gone(self, append: Append) -> bool:
        return append.key in self._logs and not self._is_in_log(append)

    def _is_in_log(self, append: Append) -> bool:
        offset = self._present.get(append.value)
        log = self._logs[append.key]
        at = bisect_left(log, (offset, "")) if offset is not None else len(log)
        return at < len(log) and log[at] == (offset, append.value)

    def _check_inside(self, transaction: Transaction) -> None:
        last: dict[Key, tuple[int, Value]] = {}
        for append in transaction.appends:
            offset = self._present.get(append.value)
            if offset is None:
                continue
            before = last.get(append.key)
            if before is not None and offset < before[0]:
                sentence = f"{transaction} appended {before[1]} to {append.key}, then {append.value}"
                self._found(Anomaly.INTERNAL, f"{sentence}; they are at {before[0]} and {offset}")
            last[append.key] = offset, append.value

    # Reads

    def _check_read(self, transaction: Transaction, read: Read) -> None:
        by = f"{transaction.name} read {read.key} from {read.first} to {read.end}"
        position = read.first
        for offset, value in read.records:
            if offset < position:
                self._found(Anomaly.NON_MONOTONIC, f"{by} and got {offset} ({value}) at position {position}")
            position = offset + 1
            writer = self._writers.get(value)
            if writer is not None and writer[0] is transaction:
                self._found(Anomaly.INTERNAL, f"{by} and got its own {value}")
            elif writer is not None and writer[0].outcome is not Outcome.ABORTED and self._is_gone(writer[1]):
                self._found(Anomaly.LOST, f"{by} and got {value} of {writer[0]}, which is not there in the end")
        self._check_skips(by, read)
        if read.is_to_the_end:
            self._check_intermediate(by, read)

    def _check_skips(self, by: str, read: Read) -> None:
        log = self._logs.get(read.key, ())
        expected = log[bisect_left(log, (read.first, "")) : bisect_left(log, (read.end, ""))]
        if len(expected) == len(read.records) and tuple(expected) == read.records:
            return
        got = set(read.records)
        for offset, value in expected:
            if (offset, value) not in got:
                self._found(Anomaly.SKIPPED, f"{by} and did not get {value} at {offset}")

    def _check_intermediate(self, by: str, read: Read) -> None:
        """With interleaved appends, the end may lie between two records of a transaction where another one is open. It
        cannot lie directly before a record of a transaction that is partly read."""
        got = {id(writer[0]) for _, value in read.records if (writer := self._writers.get(value)) is not None}
        log = self._logs.get(read.key, ())
        following = log[bisect_left(log, (read.end, "")) :]
        if self._interleaved:
            following = [each for each in following[:1] if each[0] == read.end]
        for offset, value in following:
            writer = self._writers.get(value)
            if writer is not None and id(writer[0]) in got:
                self._found(
                    Anomaly.INTERMEDIATE_READ, f"{by}, up to the end, without {value} of {writer[0]} at {offset}"
                )

    # Groups

    def _check_groups(self, finished: Collection[tuple[str, Key]]) -> None:
        done: defaultdict[tuple[str, Key], dict[int, Transaction]] = defaultdict(dict)
        for transaction in self._transactions:
            if not self._has_effect(transaction):
                continue
            for read in transaction.reads:
                for offset, value in read.records if read.group else ():
                    first = done[read.group, read.key].setdefault(offset, transaction)
                    if first is not transaction:
                        where = f"{value} at {offset} of {read.key}"
                        self._found(
                            Anomaly.PROCESSED_TWICE, f"{where} by {first} and {transaction}, group {read.group}"
                        )
        for group, key in finished:
            for offset, value in self._logs.get(key, ()):
                if offset not in done[group, key]:
                    self._found(Anomaly.UNPROCESSED, f"{value} at {offset} of {key}, group {group}")

    def _has_effect(self, transaction: Transaction) -> bool:
        if transaction.outcome is Outcome.UNKNOWN:
            return any(each.value in self._visible for each in transaction.appends)
        return transaction.outcome is Outcome.COMMITTED

    # Cycles

    def _check_cycles(self) -> None:
        if not self._interleaved:
            self._check_transaction_cycles()
        found = contradiction(self._transactions, self._places, self._visible)
        if found is not None:
            self._found(Anomaly.CIRCULAR if found.has_read else Anomaly.ORDER, str(found))

    def _check_transaction_cycles(self) -> None:
        writes: dict[tuple[str, str], str] = {}
        for key, log in self._logs.items():
            known = [(self._writers[value][0].name, value) for _, value in log if value in self._writers]
            for (first, one), (second, other) in pairwise(known):
                if first != second:
                    writes.setdefault((first, second), f"{first} appended {one} to {key} before {second} {other}")
        reads: dict[tuple[str, str], str] = {}
        for transaction in self._transactions:
            for read in transaction.reads if self._has_effect(transaction) else ():
                for _, value in read.records:
                    writer = self._visible.get(value)
                    if writer is not None and writer is not transaction:
                        sentence = f"{transaction.name} read {value} of {writer.name} in {read.key}"
                        reads.setdefault((writer.name, transaction.name), sentence)
        if cycle := _cycle(writes):
            self._found(Anomaly.WRITE_CYCLE, _explained(cycle, [writes]))
        elif cycle := _cycle([*reads, *writes]):
            self._found(Anomaly.CIRCULAR, _explained(cycle, [reads, writes]))


def _cycle(edges: Iterable[tuple[str, str]]) -> list[str]:
    successors: defaultdict[str, list[str]] = defaultdict(list)
    for first, second in edges:
        successors[first].append(second)
    return short_cycle(successors)


def _explained(cycle: list[str], reasons: Sequence[dict[tuple[str, str], str]]) -> str:
    steps = pairwise([*cycle, cycle[0]])
    return "; ".join(next(each[step] for each in reasons if step in each) for step in steps)
