"""Tests of the ledger itself: it detects and names each fault that a crash could cause."""

from __future__ import annotations

from ottla.testing.ledger import Findings, Found, Ledger

P = ("topic", 0)


def compared(found: list[Found], *, start_offset: int = 0) -> Findings:
    ledger = Ledger()
    for offset in range(4):
        ledger.acknowledged(P, offset, source=1, sequence=offset + 10)
    return ledger.compare(P, found, start_offset=start_offset)


def counts(findings: Findings) -> tuple[int, int, int, int]:
    return findings.missing, findings.misplaced, findings.doubled, findings.reordered


def test_all_there() -> None:
    findings = compared([(0, 1, 10), (1, 1, 11), (2, 1, 12), (3, 1, 13), (4, 1, 14), (5, 2, 0)])
    assert findings.ok
    assert (findings.acknowledged, findings.read) == (4, 6)


def test_missing() -> None:
    findings = compared([(0, 1, 10), (1, 1, 11), (2, 1, 12)])
    assert counts(findings) == (1, 0, 0, 0)
    assert findings.problems == ["('topic', 0): record (1, 13), acknowledged at 3, is missing"]


def test_missing_behind_another_record() -> None:
    assert counts(compared([(0, 1, 10), (1, 1, 11), (2, 1, 12), (3, 2, 0)])) == (1, 0, 0, 0)


def test_doubled() -> None:
    findings = compared([(0, 1, 10), (1, 1, 11), (2, 1, 12), (3, 1, 13), (4, 1, 13)])
    assert counts(findings) == (0, 0, 1, 0)


def test_reordered_and_misplaced() -> None:
    findings = compared([(0, 1, 10), (1, 1, 12), (2, 1, 11), (3, 1, 13)])
    assert counts(findings) == (0, 2, 0, 1)
    assert not findings.ok


def test_offsets_that_go_back() -> None:
    assert compared([(0, 1, 10), (1, 1, 11), (1, 1, 11), (2, 1, 12), (3, 1, 13)]).reordered > 0


def test_one_offset_acknowledged_twice() -> None:
    ledger = Ledger()
    ledger.acknowledged(P, 0, 1, 0)
    ledger.acknowledged(P, 0, 2, 0)
    assert ledger.compare(P, [(0, 1, 0)]).misplaced == 1


def test_deleted_on_request() -> None:
    findings = compared([(2, 1, 12), (3, 1, 13)], start_offset=2)
    assert findings.ok
    assert findings.acknowledged == 2


def test_what_was_lost_by_permission_does_not_count() -> None:
    ledger = Ledger()
    for offset in range(4):
        ledger.acknowledged(P, offset, 1, offset)
    ledger.rewind(P, [(0, 1, 0), (1, 1, 1)])
    ledger.acknowledged(P, 2, 1, 9)
    assert ledger.compare(P, [(0, 1, 0), (1, 1, 1), (2, 1, 9)]).ok
    assert ledger.compare(P, [(0, 1, 0), (1, 1, 1)]).missing == 1


def test_a_ledger_that_was_rewound_knows_only_what_was_found() -> None:
    ledger = Ledger()
    for offset in range(4):
        ledger.acknowledged(P, offset, 1, offset)
    ledger.acknowledged(P, 3, 2, 0)
    ledger.rewind(P, [(0, 1, 0), (1, 1, 1)])
    assert ledger.last_offset(P) == 1
    assert ledger.compare(P, [(0, 1, 0), (1, 1, 1)]).ok
    ledger.rewind(P, [])
    assert ledger.last_offset(P) == -1
