"""The history of transactors and exactly-once workers as one history of transactions, and its check.

Transactors record, tab-separated with a time in microseconds (files `*.transactor`):

    began      name
    sends      name key value
    acked      name value offset                               -1: not known
    read       name key first end began is_to_the_end offset=value ...
    commits    name                                            the commit is requested
    committed  name
    aborted    name                                            it is certainly not committed

The harness records the end in `end.committed`: lines of key, offset and value, all that is committed. Exactly-once
workers record what `tests.processes.transactions.history` says. Their output contains its input, from which their reads
follow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.processes.transactions.checker import ChainHistory, Seen
from tests.processes.transactions.checker import check as check_chain
from tests.processes.transactions.history import SUFFIX as WORKER_SUFFIX
from tests.processes.transactions.history import read_transactions
from tests.support.anomalies.checker import check
from tests.support.anomalies.history import NEVER, Append, History, Outcome, Read, Transaction

FOLDER = "transactions"
SUFFIX = ".transactor"
END = "end.committed"
SOURCE, TARGET = "tx", "tx-out"
PARTITIONS = 3
GROUP = "exactly-once"

Log = list[tuple[int, str]]


class Judged(NamedTuple):
    counts: Counter[str]
    """Transactions by outcome, appends and reads."""
    anomalies: list[tuple[str, str]]
    """Names with a sentence."""


def judge(directory: Path) -> Judged:
    """Checks the history in a folder of a siege."""
    transactions = read_transactors(directory)
    logs = read_end(directory)
    counts = _counts("transactions", transactions)
    if logs is None:
        return Judged(counts, [("broken", "nobody read the committed records at the end")])
    workers = worker_transactions(directory, logs)
    counts += _counts("exactly-once transactions", workers)
    keys = [f"{SOURCE}-{index}" for index in range(PARTITIONS)]
    findings = check(History([*transactions, *workers], logs), finished=[(GROUP, key) for key in keys])
    anomalies = [(str(each.anomaly), each.sentence) for each in findings]
    return Judged(counts, anomalies + list(_chain_anomalies(directory, logs)))


def _counts(what: str, transactions: Iterable[Transaction]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in transactions:
        counts[f"{what}, {each.outcome}"] += 1
        counts[f"{what}, appends"] += len(each.appends)
        counts[f"{what}, values read"] += sum(len(read.records) for read in each.reads)
    return counts


def read_transactors(directory: Path) -> list[Transaction]:
    found: dict[str, Transaction] = {}
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        for line in _lines(path):
            at, kind, name, *rest = line.split("\t")
            if kind == "began":
                found[name] = Transaction(name)
            else:
                _add(found[name], int(at), kind, rest)
    return list(found.values())


def _lines(path: Path) -> Iterator[str]:
    """Returns the complete lines; the last one may be cut off by the death of its process."""
    text = path.read_text(encoding="ascii")
    yield from text[: text.rfind("\n") + 1].splitlines()


def _add(transaction: Transaction, at_us: int, kind: str, rest: list[str]) -> None:
    operations = transaction.operations
    if kind == "sends":
        operations.append(Append(rest[0], rest[1], at_us))
    elif kind == "acked":
        sent = operations[-1]
        assert isinstance(sent, Append), transaction.name
        offset = int(rest[1])
        operations[-1] = sent._replace(ended=at_us, offset=offset if offset >= 0 else None)
    elif kind == "read":
        key, first, end, began_us, is_to_the_end, *texts = rest
        pairs = (text.split("=", 1) for text in texts)
        records = tuple((int(offset), value) for offset, value in pairs)
        operations.append(Read(key, int(first), int(end), records, int(began_us), at_us, is_to_the_end == "1"))
    elif kind == "commits":
        transaction.outcome, transaction.commit_began = Outcome.UNKNOWN, at_us
    elif kind == "committed":
        transaction.outcome, transaction.commit_ended = Outcome.COMMITTED, at_us
    elif kind == "aborted":
        transaction.outcome = Outcome.ABORTED
    else:
        raise ValueError(f"a transactor has no lines of the kind {kind}")


def read_end(directory: Path) -> dict[str, Log] | None:
    path = directory / END
    if not path.exists():
        return None
    logs: dict[str, Log] = {f"{topic}-{index}": [] for topic in (SOURCE, TARGET) for index in range(PARTITIONS)}
    for line in _lines(path):
        key, offset, value = line.split("\t")
        logs[key].append((int(offset), value))
    for log in logs.values():
        log.sort()
    return logs


def write_end(directory: Path, topic: str, view: Iterable[Seen]) -> None:
    with (directory / END).open("a", encoding="ascii") as file:
        for each in view:
            file.write(f"{topic}-{each.partition}\t{each.offset}\t{each.value}\n")


class _Worked(NamedTuple):
    """A transaction of an exactly-once worker, without its contents."""

    began_us: int
    outcome: Outcome = Outcome.ABORTED
    commit_began: float = NEVER
    commit_ended: float = NEVER


def worker_transactions(directory: Path, logs: dict[str, Log]) -> list[Transaction]:
    """Returns the transactions of exactly-once workers, with their visible output and what they consumed for it."""
    worked = _worked(directory)
    offsets = {value: offset for key, log in logs.items() if _topic(key) == SOURCE for offset, value in log}
    appends: defaultdict[str, list[Append]] = defaultdict(list)
    consumed: defaultdict[tuple[str, str], Log] = defaultdict(list)
    for key, log in logs.items():
        for offset, value in log if _topic(key) == TARGET else ():
            name, source = value.rpartition("|")[2].rpartition(".")[0], value.partition("|")[0]
            if name not in worked or source not in offsets:
                continue  # the check of the chain reports it
            appends[name].append(Append(key, value, worked[name].began_us, worked[name].commit_ended, offset))
            consumed[name, f"{SOURCE}-{key.rpartition('-')[2]}"].append((offsets[source], source))
    reads: defaultdict[str, list[Read]] = defaultdict(list)
    for (name, key), records in consumed.items():
        first, end = records[0][0], records[-1][0] + 1
        reads[name].append(Read(key, first, end, tuple(records), 0, worked[name].began_us, group=GROUP))
    return [
        Transaction(name, [*reads[name], *appends[name]], one.outcome, one.commit_began, one.commit_ended)
        for name, one in worked.items()
    ]


def _worked(directory: Path) -> dict[str, _Worked]:
    found: dict[str, _Worked] = {}
    for path in sorted(directory.glob(f"*{WORKER_SUFFIX}")):
        for line in _lines(path):
            at, kind, number, *_ = line.split("\t")
            name = f"{path.stem}.{number}"
            if kind == "began":
                found[name] = _Worked(int(at))
            elif kind == "commits":
                found[name] = found[name]._replace(outcome=Outcome.UNKNOWN, commit_began=int(at))
            elif kind == "committed":
                found[name] = found[name]._replace(outcome=Outcome.COMMITTED, commit_ended=int(at))
            elif kind == "aborted":
                found[name] = found[name]._replace(outcome=Outcome.ABORTED)
    return found


def _topic(key: str) -> str:
    return key.rpartition("-")[0]


def _chain_anomalies(directory: Path, logs: dict[str, Log]) -> Iterator[tuple[str, str]]:
    """Checks that the output of the workers is their input, each record once and in its order."""
    views: dict[str, list[Seen]] = {SOURCE: [], TARGET: []}
    for key, log in logs.items():
        topic, _, index = key.rpartition("-")
        views[topic] += [Seen(int(index), offset, value) for offset, value in log]
    target = {TARGET: views[TARGET]}
    history = ChainHistory(views[SOURCE], target, target, {TARGET: read_transactions(directory, "")})
    for anomaly, sentences in check_chain(history).sentences.items():
        yield from ((f"exactly once: {anomaly}", sentence) for sentence in sentences)
