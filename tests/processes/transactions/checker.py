"""Finds the anomalies in the topics of a chain. Pure: tests build histories by hand and check that it reports them.

A record's value is its input, then a mark for each stage that it passed: `7:12|first-1.3.C|second-2.9.C` is number 12
of key 7, written by transaction 3 of worker first-1, then by transaction 9 of second-2. A mark that ends with A belongs
to a transaction that is aborted on purpose.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

EXAMPLES_MAX = 5
ON_PURPOSE = ".A"


class Outcome(StrEnum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Seen(NamedTuple):
    """A record as a reader saw it."""

    partition: int
    offset: int
    value: str

    @property
    def input(self) -> str:
        return self.value.partition("|")[0]

    @property
    def key(self) -> str:
        return self.value.partition(":")[0]

    @property
    def transaction(self) -> str:
        """The worker and number of its transaction."""
        return self.value.rpartition("|")[2].rpartition(".")[0]

    @property
    def is_aborted_on_purpose(self) -> bool:
        return ON_PURPOSE in self.value


class Transaction(NamedTuple):
    records: int
    outcome: Outcome


@dataclass(slots=True)
class ChainHistory:
    source: Sequence[Seen]
    """The chain's input at the end."""
    views: Mapping[str, Sequence[Seen]]
    """The committed records of each topic at the end."""
    live: Mapping[str, Sequence[Seen]]
    """The committed records of each topic as read during the run."""
    transactions: Mapping[str, Mapping[str, Transaction]]
    """Transactions by topic, then by worker and number."""
    broken: Sequence[str] = ()


class Anomaly(StrEnum):
    LOST = "a record is not in the output"
    DOUBLED = "a record is in the output more than once"
    INVENTED = "the output has what the input has not"
    REORDERED = "records of a key are in another order than in the input"
    ABORTED_READ = "a record of an aborted transaction is read"
    TORN = "a part of a transaction is read"
    UNDONE = "a transaction whose commit was acknowledged is not read"
    SKIPPED = "a reader that was there all the while has skipped a committed record"
    CHANGED = "a reader that was there all the while saw what is not there in the end"
    BROKEN = "beside the history"


@dataclass(slots=True)
class Findings:
    sentences: defaultdict[Anomaly, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, anomaly: Anomaly, sentence: str) -> None:
        self.sentences[anomaly].append(sentence)

    @property
    def ok(self) -> bool:
        return not self.sentences

    def __str__(self) -> str:
        lines = []
        for anomaly, sentences in self.sentences.items():
            lines.append(f"{anomaly.value}: {len(sentences)} times")
            lines += (f"    {sentence}" for sentence in sentences[:EXAMPLES_MAX])
        return "\n".join(lines) or "nothing is wrong"


def check(history: ChainHistory) -> Findings:
    findings = Findings()
    for sentence in history.broken:
        findings.add(Anomaly.BROKEN, sentence)
    for topic, view in history.views.items():
        _check_records(topic, history.source, view, findings)
        _check_order(topic, history.source, view, findings)
        _check_transactions(topic, view, history.transactions.get(topic, {}), findings)
        _check_live(topic, view, history.live.get(topic, ()), findings)
    return findings


def _check_records(topic: str, source: Sequence[Seen], view: Sequence[Seen], findings: Findings) -> None:
    expected = Counter(each.input for each in source)
    found = Counter(each.input for each in view)
    for value in expected.keys() - found.keys():
        findings.add(Anomaly.LOST, f"{topic}: {value}")
    for value, count in found.items():
        if value not in expected:
            findings.add(Anomaly.INVENTED, f"{topic}: {value}")
        elif count > expected[value]:
            where = [each for each in view if each.input == value]
            findings.add(Anomaly.DOUBLED, f"{topic}: {value} in {where}")


def _check_order(topic: str, source: Sequence[Seen], view: Sequence[Seen], findings: Findings) -> None:
    """Checks the order of the first occurrences of records."""
    expected = _by_key(source)
    for key, values in _by_key(view).items():
        present = set(values)
        if list(dict.fromkeys(values)) != [value for value in dict.fromkeys(expected.get(key, ())) if value in present]:
            findings.add(Anomaly.REORDERED, f"{topic}: key {key}")


def _by_key(records: Iterable[Seen]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for each in sorted(records, key=lambda one: (one.partition, one.offset)):
        found[each.key].append(each.input)
    return found


def _check_transactions(
    topic: str, view: Sequence[Seen], transactions: Mapping[str, Transaction], findings: Findings
) -> None:
    for each in view:
        if each.is_aborted_on_purpose:
            findings.add(Anomaly.ABORTED_READ, f"{topic}: {each}")
    found = Counter(each.transaction for each in view)
    for name, transaction in transactions.items():
        count = found[name]
        of_all = f"{topic}: {count} of {transaction.records} records of {name}"
        if transaction.outcome is Outcome.ABORTED and count:
            findings.add(Anomaly.ABORTED_READ, of_all)
        elif count not in (0, transaction.records):
            findings.add(Anomaly.TORN, of_all)
        elif transaction.outcome is Outcome.COMMITTED and not count:
            findings.add(Anomaly.UNDONE, of_all)
    for name in found.keys() - transactions.keys():
        findings.add(Anomaly.INVENTED, f"{topic}: transaction {name} of nobody")


def _check_live(topic: str, view: Sequence[Seen], live: Sequence[Seen], findings: Findings) -> None:
    """Checks that the live reader saw each record once, in the same order in each partition."""
    for partition in sorted({each.partition for each in (*view, *live)}):
        expected = [each for each in view if each.partition == partition]
        seen = [each for each in live if each.partition == partition]
        if seen == expected:
            continue
        for each in sorted(set(expected) - set(seen)):
            findings.add(Anomaly.SKIPPED, f"{topic}: {each}")
        for each in sorted(set(seen) - set(expected)):
            aborted = Anomaly.ABORTED_READ if each.is_aborted_on_purpose else Anomaly.CHANGED
            findings.add(aborted, f"{topic}: {each}, by the reader that was there all the while")
        if set(seen) == set(expected):
            findings.add(Anomaly.CHANGED, f"{topic}-{partition}: read twice, or in another order")
