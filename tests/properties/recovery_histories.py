"""Random logs of a state: transactions that interleave, are aborted, abandoned or damaged; checksums; gaps."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ottla.recovery import Replayer, RowTables
from ottla.recovery.entries import Kind, abort, commit, delete, digest, encode, put, statement, takeover
from ottla.recovery.logs import Columns

TABLES = ("", "", "t")
KEYS = 7


class History:
    """`columns` is the whole log."""

    def __init__(self, chance: random.Random, length: int, *, statements: bool = False, damage: bool = False) -> None:
        self._chance = chance
        self._statements = statements
        self._writer = RowTables()
        self._replayer = Replayer(self._writer)
        self._open: dict[int, list[bytes]] = {}
        self.columns = Columns([], [], [])
        self.transactions: list[int] = []
        self._offset = 0
        for number in range(1, length + 1):
            for data in self._entries(number):
                self._add(data)
        if damage:
            at = chance.randrange(length)
            bad = list(self.columns.data)
            bad[at] = chance.choice([b"", b"stranger", bad[at][:13], commit(9999, [b"x"]), digest(b"wrong")])
            self.columns = self.columns._replace(data=bad)

    def _add(self, data: bytes) -> None:
        offset = self._offset if self._chance.random() < 0.95 else self._offset + self._chance.randrange(3)
        self._offset = offset + 1
        time_ms = 1000 + offset + self._chance.randrange(5)
        for column, value in zip(self.columns, (offset, time_ms, data), strict=True):
            column.append(value)  # type: ignore[attr-defined]  # they are lists here
        if not self._statements:
            self._replayer.feed(Columns([offset], [time_ms], [data]))

    def _entries(self, number: int) -> Iterator[bytes]:
        chance = self._chance
        choice, checksum = chance.random(), chance.random() < 0.1
        table, key, image = chance.choice(TABLES), self.key(), self.image(number)
        if choice < 0.35:
            yield put(key, image, table=self.table(table), checksum=checksum)
        elif choice < 0.43:
            yield delete(key, table=self.table(table), checksum=checksum)
        elif choice < 0.48:
            yield self.statement(number) if self._statements else digest(self._writer.digest())
        elif choice < 0.50:
            yield encode(Kind.NOTHING)
        elif choice < 0.52:
            yield takeover(number)
            self._open.clear()
        elif choice < 0.80 or not self._open:
            transaction = chance.choice([number, *self._open])
            is_statement = self._statements and chance.random() < 0.1
            change = put(key, image, table=self.table(table), transaction=transaction, checksum=checksum)
            if is_statement:
                change = self.statement(number, transaction)
            elif chance.random() < 0.2:
                change = delete(key, table=self.table(table), transaction=transaction)
            self._open.setdefault(transaction, []).append(change)
            yield change
        else:
            transaction = chance.choice(list(self._open))
            entries = self._open.pop(transaction)
            if chance.random() < 0.2:
                yield abort(transaction)
            else:
                self.transactions.append(transaction)
                yield commit(transaction, entries)

    def key(self) -> bytes:
        number = self._chance.randrange(KEYS)
        return b"[%d]" % number if self._statements else b"%d" % number

    def image(self, number: int) -> bytes:
        """In memory an image does not contain its key; in SQLite it does, so `put` uses the key of the image there."""
        return b"%d" % number

    def table(self, name: str) -> str:
        return name

    def statement(self, number: int, transaction: int = 0) -> bytes:
        return statement("", [], transaction=transaction)


class SqliteHistory(History):
    """Images and statements of one table: id, n."""

    def __init__(self, chance: random.Random, length: int) -> None:
        super().__init__(chance, length, statements=True)

    def key(self) -> bytes:
        self._id = self._chance.randrange(KEYS)
        return b"[%d]" % self._id

    def image(self, number: int) -> bytes:
        return b"[%d,%d]" % (self._id, number)

    def table(self, name: str) -> str:
        return "rows"

    def statement(self, number: int, transaction: int = 0) -> bytes:
        """A statement whose effect depends on all earlier ones."""
        sql = self._chance.choice(
            ["UPDATE rows SET n = n * 3 + ?", "DELETE FROM rows WHERE n % 5 = ? % 5", "UPDATE rows SET n = n - ?"]
        )
        return statement(sql, [number], transaction=transaction)


def chunks_of(columns: Columns, chance: random.Random) -> Iterator[Columns]:
    """Splits the log into chunks of arbitrary sizes, as a log may return them."""
    at = 0
    while at < len(columns.offsets):
        size = chance.randrange(1, 12)
        yield columns.since(at).before(size)
        at += size


def between(columns: Columns, first: int, until: int) -> Columns:
    places = [place for place, offset in enumerate(columns.offsets) if first <= offset < until]
    return columns.since(places[0]).before(len(places)) if places else Columns([], [], [])
