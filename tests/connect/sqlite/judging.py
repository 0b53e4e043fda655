"""Compares the log with the writers' records."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from ottla.connect.sqlite.entries import Kind, Part, decode, decode_pages
from ottla.connect.sqlite.restore import RestorePoint, restore
from ottla.wal import SyncLog
from tests.connect.sqlite.content import content_hash, last_number, read_only


@dataclass(slots=True)
class Verdict:
    transactions: int = 0
    snapshots: int = 0
    generations: int = 0
    restored: int = 0


def judge(
    log: SyncLog, database: Path, recorded: dict[int, str], last: int, rng: random.Random, points: int
) -> Verdict:
    verdict = Verdict()
    numbers = walk(log, database.with_name("walked.db"), verdict)
    chosen = {last, *rng.sample(range(min(numbers), last), min(points - 1, last - min(numbers)))}
    for transaction in sorted(chosen):
        target = database.with_name(f"restored-{transaction}.db")
        done = restore(log, target, RestorePoint(transaction=transaction))
        assert done.transaction == transaction
        with read_only(target) as connection:
            number = last_number(connection)
            assert number == numbers[transaction], (transaction, number)
            if number:
                assert content_hash(connection) == recorded[number], f"transaction {transaction} has other rows"
        verdict.restored += 1
        if transaction != last:
            target.unlink()
    assert numbers[last] == max(recorded), "the last transaction is missing"
    is_same_file(database, database.with_name(f"restored-{last}.db"))
    return verdict


def walk(log: SyncLog, path: Path, verdict: Verdict) -> dict[int, int]:
    """Replays each transaction separately and returns the writers' number of each. Within a generation none is missing
    and none is repeated."""
    numbers: dict[int, int] = {}
    held: list[bytes] = []
    before: Part | None = None
    with open(path, "w+b", buffering=0) as file:
        for entry in log.read(log.tail().start_offset):
            part = decode(entry.data)
            held = [entry.data] if part.number == 0 else [*held, entry.data]
            if not part.is_last:
                continue
            _apply(file.fileno(), held, part)
            number = _number_in(path)
            if before is None or part.generation != before.generation:
                verdict.generations += 1
                assert part.kind is Kind.SNAPSHOT
            elif part.kind is Kind.TRANSACTION:
                assert number - numbers[before.transaction] in (0, 1), f"transaction {part.transaction} left some out"
                assert part.transaction == before.transaction + 1
            verdict.snapshots += part.kind is Kind.SNAPSHOT
            verdict.transactions += part.kind is Kind.TRANSACTION
            numbers[part.transaction] = number
            before = part
    return numbers


def _apply(file: int, entries: list[bytes], part: Part) -> None:
    for entry in entries:
        for number, page in decode_pages(entry):
            os.pwrite(file, page, (number - 1) * part.page_bytes)
    os.ftruncate(file, part.database_pages * part.page_bytes)


def _number_in(path: Path) -> int:
    with read_only(path) as connection:
        return last_number(connection)


def is_same_file(database: Path, restored: Path) -> None:
    """After a checkpoint the file is complete: then both are equal, byte for byte."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy
    assert database.read_bytes() == restored.read_bytes()
