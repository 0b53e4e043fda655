"""The history of the clients of write-ahead logs, and its check for linearizability (`tests.processes.wal_history`).

Each process records, tab-separated with a time in microseconds (files `*.wal`):

    asks   number topic kind writer expected-end epoch    kind is append, fence or tail; -1: no end is expected
    gets   number outcome offset epoch                    without this line, the outcome is unknown
    entry  topic offset value                             read at the end
    whole  topic                                          everything was read
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from tests.processes.wal_history import Operation, violations

FOLDER = "wal"
SUFFIX = ".wal"
COMPETED, RULED = "wal-competed", "wal-ruled"


def key_of(process: str, number: int) -> str:
    """Returns the value of an append."""
    return f"{process}.{number}"


class Judged(NamedTuple):
    counts: Counter[str]
    violations: list[str]


def judge(directory: Path) -> Judged:
    """Checks the histories in a folder of a siege."""
    histories: defaultdict[str, list[Operation]] = defaultdict(list)
    logs: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
    whole: set[str] = set()
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        asked: dict[str, Operation] = {}
        text = path.read_text(encoding="ascii")
        for line in text[: text.rfind("\n") + 1].splitlines():
            at, kind, *rest = line.split("\t")
            if kind == "asks":
                asked[rest[0]] = operation = _asked(path.stem, int(at) / 1e6, rest)
                histories[rest[1]].append(operation)
            elif kind == "gets":
                _answer(asked[rest[0]], int(at) / 1e6, rest)
            elif kind == "entry":
                logs[rest[0]].append((int(rest[1]), rest[2].encode()))
            elif kind == "whole":
                whole.add(rest[0])
    found: list[str] = []
    for topic, history in sorted(histories.items()):
        if topic not in whole:
            found.append(f"{topic} was not read to its end")
            continue
        found += (f"{topic}: {sentence}" for sentence in violations(history, logs[topic]))
    counts = Counter(f"{each.kind} {each.outcome}" for history in histories.values() for each in history)
    return Judged(counts, found)


def _asked(process: str, began_s: float, rest: list[str]) -> Operation:
    number, _, kind, writer, expected, epoch = rest
    is_append = kind == "append"
    known: Any = kind
    return Operation(
        known,
        writer,
        began_s,
        value=key_of(process, int(number)).encode() if is_append else b"",
        expected_end=int(expected) if is_append and expected != "-1" else None,
        epoch=int(epoch),
    )


def _answer(operation: Operation, ended_s: float, rest: list[str]) -> None:
    _, outcome, offset, epoch = rest
    known: Any = outcome
    operation.outcome, operation.offset, operation.ended_s = known, int(offset), ended_s
    if operation.kind == "fence":
        operation.epoch = int(epoch)
