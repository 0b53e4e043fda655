"""The checker of write-ahead logs finds the errors of a history, and none in a correct one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.processes.wal_history import Operation, violations


def right() -> tuple[list[Operation], list[tuple[int, bytes]]]:
    history = [
        Operation("fence", "a", 0.0, 1.0, "done", epoch=1, offset=0),
        Operation("append", "a", 1.1, 2.0, "done", b"one", epoch=1, offset=1),
        Operation("append", "a", 1.2, 2.1, "done", b"two", 2, epoch=1, offset=2),
        Operation("append", "a", 2.2, 2.9, "unexpected end", b"no", 2, epoch=1, offset=3),
        Operation("tail", "c", 2.2, 3.0, "done", offset=3),
        Operation("append", "a", 3.1, value=b"lost answer", epoch=1),
        Operation("fence", "b", 3.2, 4.0, "done", epoch=2, offset=4),
        Operation("append", "b", 4.1, 5.0, "done", b"three", epoch=2, offset=5),
        Operation("append", "a", 4.2, 5.0, "fenced", b"late", epoch=1),
    ]
    return history, [(1, b"one"), (2, b"two"), (3, b"lost answer"), (5, b"three")]


def test_a_right_history_has_no_violations() -> None:
    history, log = right()
    assert violations(history, log) == []
    assert violations(history, [each for each in log if each[1] != b"lost answer"]) == []


BROKEN = {
    "lost": (1, {}, [(2, b"two"), (5, b"three")]),
    "twice": (1, {}, [(1, b"one"), (2, b"two"), (5, b"three"), (6, b"one")]),
    "acknowledged at 2 and is at 1": (1, {"offset": 2}, None),
    "nobody wrote it": (1, {}, [(1, b"one"), (2, b"two"), (5, b"three"), (6, b"?")]),
    "expected the end 1": (2, {"expected_end": 1}, None),
    "was refused": (3, {}, [(1, b"one"), (2, b"two"), (3, b"no"), (5, b"three")]),
    "which is what it expected": (3, {"expected_end": 3}, None),
    "was over before it began": (4, {"offset": 2}, None),
    "behind the fence of 2": (8, {"outcome": "unknown"}, [(1, b"one"), (2, b"two"), (5, b"three"), (6, b"late")]),
    "has the epoch 1": (6, {"epoch": 1}, None),
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_broken_history_is_found(sentence: str) -> None:
    history, log = right()
    place, changes, other = BROKEN[sentence]
    history[place] = replace(history[place], **changes)  # type: ignore[arg-type] # the changes are of its fields
    found = violations(history, other or log)
    assert any(sentence in each for each in found), found
