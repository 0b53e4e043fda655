"""A log reduced range by range gives the state, the position and the errors of a replay entry by entry."""

from __future__ import annotations

import pickle
import random
import sqlite3
from collections.abc import Callable, Iterator

import pytest

from ottla.recovery import (
    END,
    Applier,
    DamagedEntryError,
    Point,
    Position,
    RecoveryError,
    Replayer,
    RowTables,
    SqliteApplier,
)
from ottla.recovery import reducer as reducing_module
from ottla.recovery.entries import commit, delete, put, statement
from ottla.recovery.logs import Columns
from ottla.recovery.reducer import ReducedPart, Reducer
from tests.properties.recovery_histories import History, SqliteHistory, between, chunks_of

CASES = 150
SCHEMA = "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, n INTEGER);"


class Outcome:
    """The result of a replay."""

    def __init__(self, replayer: Replayer, applier: Applier, error: str = "") -> None:
        self.position = replayer.position
        self.counts = (replayer.entry_count, replayer.transaction_count, replayer.digest_count)
        self.reached = replayer.reached
        self.open = [] if replayer.reached else replayer.open_transactions
        self.digest = applier.digest()
        self.error = error

    def shown(self) -> tuple[object, ...]:
        return self.error, self.digest, self.position, self.counts, self.reached, self.open


def entry_by_entry(
    columns: Columns, applier: Applier, until: Point, chance: random.Random, position: Position | None = None
) -> Outcome:
    replayer = Replayer(applier, position, until=until)
    try:
        for chunk in chunks_of(between(columns, replayer.read_offset, 1 << 62), chance):
            replayer.feed(chunk)
    except RecoveryError as error:
        return Outcome(replayer, applier, str(error))
    return Outcome(replayer, applier)


def pieces_of(columns: Columns, begin: int, until: Point, chance: random.Random) -> Iterator[ReducedPart]:
    """Splits the log into ranges of any length, as processes would send them."""
    end = columns.offsets[-1] + 1
    cuts = sorted(chance.sample(range(begin, end + 1), min(end - begin, chance.randrange(6)))) if begin < end else []
    for first, last in zip([begin, *cuts], [*cuts, end], strict=True):
        reducer = Reducer(first, until)
        for chunk in chunks_of(between(columns, first, last), chance):
            reducer.feed(chunk)
            yield from pickle.loads(pickle.dumps(reducer.take_pieces()))
        reducer.end()
        yield from pickle.loads(pickle.dumps(reducer.take_pieces()))


def by_pieces(
    columns: Columns,
    applier: Applier,
    until: Point,
    chance: random.Random,
    position: Position | None = None,
    pieces_max: int = 1 << 62,
) -> Outcome:
    replayer = Replayer(applier, position, until=until)
    begin = replayer.position.next_offset
    try:
        for chunk in chunks_of(between(columns, replayer.read_offset, begin), chance):
            replayer.feed(chunk)
        for number, piece in enumerate(pieces_of(columns, begin, until, chance)):
            if number == pieces_max:
                break
            replayer.feed_piece(piece)
    except RecoveryError as error:
        return Outcome(replayer, applier, str(error))
    return Outcome(replayer, applier)


def any_point(history: History, chance: random.Random) -> Point:
    end = history.columns.offsets[-1] + 1
    points = [END, Point(offset=chance.randrange(end + 1)), Point(time_ms=1000 + chance.randrange(end + 6))]
    if history.transactions:
        points.append(Point(transaction=chance.choice(history.transactions)))
    return chance.choice(points)


@pytest.fixture(params=["small pieces", "whole pieces"])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small pieces":
        monkeypatch.setattr(reducing_module, "PIECE_BYTES_MAX", 40)


def new_database() -> SqliteApplier:
    return SqliteApplier(sqlite3.connect(":memory:"), SCHEMA, by_key=True)


PINNED = 2601279653
"""Found a position at the commit of a transaction that missed another one, open there and aborted next."""


@pytest.mark.usefixtures("piece_bytes")
@pytest.mark.parametrize("pinned", [None, PINNED], ids=["new", "pinned"])
def test_ranges_in_order_are_the_whole_log(seed: int, pinned: int | None) -> None:
    chance = random.Random(pinned or seed)
    for case in range(CASES):
        history = History(chance, chance.randrange(1, 90), damage=case % 5 == 0)
        until = any_point(history, chance)
        expected = entry_by_entry(history.columns, RowTables(), until, chance)
        found = by_pieces(history.columns, RowTables(), until, chance)
        if expected.error:  # both are before the entry; how far depends on the size of a read
            assert found.error == expected.error, (case, until)
        else:
            assert found.shown() == expected.shown(), (case, until)


@pytest.mark.usefixtures("piece_bytes")
@pytest.mark.parametrize("kind", ["tables", "database"])
def test_after_any_piece_the_state_is_one_of_the_past_and_goes_on(seed: int, kind: str) -> None:
    """A process that dies between two pieces continues from there, by ranges or not, and applies everything once."""
    chance = random.Random(seed)
    new: Callable[[], Applier] = RowTables if kind == "tables" else new_database
    for case in range(CASES // 2):
        length = chance.randrange(1, 90)
        history = History(chance, length) if kind == "tables" else SqliteHistory(chance, length)
        columns, applier = history.columns, new()
        cut = by_pieces(columns, applier, END, chance, pieces_max=chance.randrange(12))
        then = entry_by_entry(columns, new(), Point(offset=cut.position.next_offset), chance)
        assert cut.digest == then.digest, (case, cut.position)
        if cut.position.next_offset:
            assert cut.position.begin_offset <= then.position.begin_offset
        whole = entry_by_entry(columns, new(), END, chance)
        go_on = chance.choice([by_pieces, entry_by_entry])
        rest = go_on(columns, applier, END, chance, cut.position)
        assert not rest.error, (case, cut.position)
        assert (rest.digest, rest.position, rest.open) == (whole.digest, whole.position, whole.open), (case, go_on)


def test_a_transaction_that_was_open_before_is_not_committed_by_half(seed: int) -> None:
    """Its id is used again, and its part in the last range is complete by itself. A plain replay rejects it."""
    first, second = (put(b"%d" % number, b"", transaction=1) for number in range(2))
    columns = Columns(range(3), [1] * 3, [first, second, commit(1, [second])])
    expected = entry_by_entry(columns, RowTables(), END, random.Random(seed))
    pieces: list[ReducedPart] = []
    for begin, end in ((0, 1), (1, 3)):
        reducer = Reducer(begin, END)
        reducer.feed(between(columns, begin, end))
        reducer.end()
        pieces += reducer.take_pieces()
    replayer = Replayer(RowTables())
    replayer.feed_piece(pieces[0])
    with pytest.raises(DamagedEntryError) as caught:
        replayer.feed_piece(pieces[1])
    assert str(caught.value) == expected.error


def test_a_key_that_changes_often_is_applied_once() -> None:
    reducer = Reducer(0, END)
    data = [put(b"k%d" % (number % 3), b"%d" % number) for number in range(1000)] + [delete(b"k1"), put(b"new", b"")]
    reducer.feed(Columns(range(len(data)), [1] * len(data), data))
    reducer.end()
    (piece,) = reducer.take_pieces()
    assert {
        (run.kind, key): image for run in piece.runs for key, image in zip(run.keys, run.payloads, strict=True)
    } == {
        (1, b"k0"): b"999",
        (1, b"k2"): b"998",
        (1, b"new"): b"",
        (2, b"k1"): b"",
    }
    assert (piece.entry_count, piece.next_offset) == (1002, 1002)


def test_what_is_held_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducing_module, "PIECE_BYTES_MAX", 10_000)
    entries: list[Callable[[int], bytes]] = [
        lambda number: put(b"%d" % number, b"x" * 100),
        lambda number: statement("x" * 100, [number]),
    ]
    for entry in entries:
        reducer, largest = Reducer(0, END), 0
        for first in range(0, 3000, 10):
            numbers = range(first, first + 10)
            reducer.feed(Columns(numbers, [1] * 10, [entry(number) for number in numbers]))
            for piece in reducer.take_pieces():
                largest = max(largest, len(pickle.dumps(piece)))
        assert 5_000 < largest < 25_000


def test_small_states_are_told_apart(seed: int) -> None:
    """The histories reveal a wrong order: in most of them, the last two pieces matter."""
    chance, differ = random.Random(seed), 0
    for _ in range(40):
        history = History(chance, 60)
        pieces = list(pieces_of(history.columns, 0, END, chance))
        tables, swapped = RowTables(), RowTables()
        for piece in pieces:
            tables.apply(piece.runs, Position())
        for piece in reversed(pieces):
            swapped.apply(piece.runs, Position())
        differ += tables.digest() != swapped.digest()
    assert differ > 10
