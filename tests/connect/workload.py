"""A database that changes at random from a seed, with every kind of change and every common type."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg

SETUP: list[LiteralString] = [
    "CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'happy')",
    """CREATE TABLE items (
        id bigint PRIMARY KEY, small smallint, whole int, exact numeric(20, 5), wide numeric, real4 real,
        real8 double precision, words text, code varchar(40), fixed char(8), raw bytea, truth boolean, day date,
        clock time, moment timestamp, instant timestamptz, span interval, identity uuid, doc json, docb jsonb,
        numbers int[], texts text[], grid int[][], feeling mood, feelings mood[], address inet, changed int)""",
    """CREATE TABLE documents (id int PRIMARY KEY, title text, body text, data bytea, revision int)""",
    "ALTER TABLE documents REPLICA IDENTITY FULL",
    """CREATE TABLE pairs (a int, b text, value text, PRIMARY KEY (b, a))""",
    """CREATE TABLE attachments (id int PRIMARY KEY, body text, counter int)""",
    """CREATE TABLE events (id bigint PRIMARY KEY, what text)""",
    """CREATE TABLE ledger (id bigint PRIMARY KEY, amount numeric(12, 2), note varchar(40), at timestamptz)""",
]
TABLES = {"items": "id", "documents": "id", "pairs": "a, b", "attachments": "id", "events": "id", "ledger": "id"}
WHOLE_ROWS = ("items", "documents", "pairs", "events", "ledger")
"""Tables whose updates carry all values: `attachments` has large ones and the default replica identity."""

_ITEM = """
    SELECT i, (i * 7 %% 30000)::smallint, (i * 1000003 %% 2000000000)::int, (i * 1.00001)::numeric(20, 5),
        CASE i %% 50 WHEN 0 THEN 'NaN' ELSE (i::numeric * 123456789012345678901234567890.123456789) END,
        CASE i %% 40 WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' ELSE (i / 3.0)::real END,
        CASE i %% 60 WHEN 0 THEN 'Infinity' WHEN 1 THEN 1e300 WHEN 2 THEN -0.0 ELSE i / 7.0 END,
        CASE i %% 9 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN E'tab\\t "quote" \\\\ back \\n line'
            WHEN 3 THEN 'žluťoučký 🐎' WHEN 4 THEN '\\N' ELSE md5(i::text) END,
        'code-' || i, 'f' || i %% 100, CASE i %% 11 WHEN 0 THEN NULL WHEN 1 THEN ''::bytea ELSE
            sha256(i::text::bytea) END, i %% 3 = 0,
        CASE i %% 100 WHEN 0 THEN 'infinity' WHEN 1 THEN '0044-03-15 BC' ELSE date '2000-01-01' + (i %% 20000)::int END,
        time '00:00' + (i %% 86399) * interval '1.000001 s',
        CASE i %% 100 WHEN 0 THEN '-infinity' WHEN 1 THEN '0044-03-15 12:00 BC' ELSE
            timestamp '2000-01-01' + i * interval '1.000001 s' END,
        CASE i %% 100 WHEN 0 THEN 'infinity' ELSE timestamptz '2000-01-01 00:00+02' + i * interval '61.5 s' END,
        make_interval(months => (i %% 30)::int, days => (i %% 40)::int, secs => (i %% 1000) / 7.0),
        md5(i::text)::uuid, json_build_object('i', i, 'list', json_build_array(1, null, 'x"y')),
        jsonb_build_object('i', i, 'big', 12345678901234567890::numeric, 'n', null),
        CASE i %% 7 WHEN 0 THEN NULL WHEN 1 THEN '{}'::int[] ELSE array[i %% 1000, NULL, -1]::int[] END,
        array['a,b', 'c"d', 'e\\f', NULL, 'NULL', '', '{}', md5(i::text)],
        array[[1, 2], [i %% 10, NULL]]::int[], (array['sad', 'it''s ok', 'happy', NULL])[1 + i %% 4]::mood,
        array['sad', 'it''s ok', NULL]::mood[], ('10.0.' || i %% 256 || '.1')::inet, 0
    FROM generate_series(%s::bigint, %s::bigint) i"""
_BODY = "(SELECT string_agg(md5((i * 31 + n)::text), '') FROM generate_series(1, 20 + i %% 400) n)"


@dataclass(slots=True)
class Workload:
    """`step` runs one transaction; `changes` counts inserted, updated and deleted rows, and truncates."""

    connection: psycopg.Connection[Any]
    seed: int
    changes: int = 0
    next_id: int = 1
    next_entry: int = 1
    kinds: dict[str, int] = field(default_factory=dict)
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def step(self) -> None:
        is_given_up = self.chance.random() < 0.02
        before = self.changes
        with self.connection.transaction(force_rollback=is_given_up):
            for _ in range(self.chance.randint(1, 4)):
                self._change()
        if is_given_up:
            self.changes = before

    def _change(self) -> None:
        kind = self.chance.choices(
            ["insert", "update", "delete", "rekey", "document", "huge", "pair", "attach", "event", "truncate", "book"],
            [15, 15, 8, 4, 3, 0.05, 6, 3, 9, 0.15, 30],
        )[0]
        count = getattr(self, f"_{kind}")()
        self.changes += count
        self.kinds[kind] = self.kinds.get(kind, 0) + count

    def _ids(self, most: int) -> tuple[int, int]:
        begin = self.chance.randint(1, max(1, self.next_id - 1))
        return begin, begin + self.chance.randint(0, most)

    def _run(self, command: LiteralString, *values: Any) -> int:
        return max(0, self.connection.execute(command, values).rowcount)

    def _insert(self) -> int:
        begin, end = self.next_id, self.next_id + self.chance.randint(0, 60)
        self.next_id = end + 1
        return self._run("INSERT INTO items " + _ITEM, begin, end)

    def _update(self) -> int:
        begin, end = self._ids(60)
        return self._run(
            "UPDATE items SET changed = changed + 1, words = words || %s, real8 = real8 / 2, truth = NOT truth, "
            "numbers = numbers || 7 WHERE id BETWEEN %s AND %s",
            self.chance.choice(["!", "ž", "\\", '"', ""]),
            begin,
            end,
        )

    def _delete(self) -> int:
        return self._run("DELETE FROM items WHERE id BETWEEN %s AND %s", *self._ids(40))

    def _rekey(self) -> int:
        begin, end = self._ids(5)
        moved = self.next_id + 1_000_000_000
        self.next_id += 10
        return self._run("UPDATE items SET id = %s + id - %s WHERE id BETWEEN %s AND %s", moved, begin, begin, end)

    def _document(self) -> int:
        number = self.chance.randint(1, 3000)
        if self.chance.random() < 0.5:
            return self._run(
                "UPDATE documents SET revision = revision + 1 WHERE id BETWEEN %s AND %s + 2", number, number
            )
        return self._run(
            "INSERT INTO documents SELECT i, 'title ' || i, " + _BODY + ", decode(" + _BODY + ", 'hex'), 0 "
            "FROM generate_series(%s::int, %s::int + 2) i ON CONFLICT (id) DO UPDATE SET body = excluded.body || 'x'",
            number,
            number,
        )

    def _huge(self) -> int:
        return self._run(
            "INSERT INTO documents SELECT %s, 'huge', repeat(md5(%s::text), 40000), NULL, 0 ON CONFLICT (id) DO UPDATE "
            "SET revision = documents.revision + 1",
            self.chance.randint(5000, 5010),
            self.next_id,
        )

    def _pair(self) -> int:
        a = self.chance.randint(1, 500)
        if self.chance.random() < 0.4:
            self.next_id += 1
            return self._run("UPDATE pairs SET b = b || %s, a = a + 1000 WHERE a = %s", f"-{self.next_id}", a)
        return self._run(
            "INSERT INTO pairs SELECT %s, 'b' || i, md5(i::text) FROM generate_series(1, %s) i "
            "ON CONFLICT (b, a) DO UPDATE SET value = pairs.value || '.'",
            a,
            self.chance.randint(1, 20),
        )

    def _attach(self) -> int:
        number = self.chance.randint(1, 1000)
        if self.chance.random() < 0.7:
            self.next_id += 1
            to = number if self.chance.random() < 0.8 else 1_000_000 + self.next_id
            return self._run("UPDATE attachments SET counter = counter + 1, id = %s WHERE id = %s", to, number)
        return self._run(
            "INSERT INTO attachments SELECT i, " + _BODY + ", 0 FROM generate_series(%s::int, %s::int) i "
            "ON CONFLICT (id) DO UPDATE SET counter = attachments.counter + 1",
            number,
            number,
        )

    def _event(self) -> int:
        begin, end = self.next_id, self.next_id + self.chance.randint(0, 30)
        self.next_id = end + 1
        return self._run(
            "INSERT INTO events SELECT i, md5(i::text) FROM generate_series(%s::bigint, %s::bigint) i", begin, end
        )

    def _book(self) -> int:
        """Writes many narrow rows, as most tables have them."""
        size = self.chance.randint(1, 300)
        begin = self.chance.randint(1, max(1, self.next_entry))
        kind = self.chance.random()
        if kind < 0.5:
            begin, self.next_entry = self.next_entry, self.next_entry + size
            return self._run(
                "INSERT INTO ledger SELECT i, i * 1.01, 'entry ' || i, timestamptz '2026-01-01' + i * interval '1 s' "
                "FROM generate_series(%s::bigint, %s::bigint - 1) i",
                begin,
                begin + size,
            )
        if kind < 0.8:
            return self._run("UPDATE ledger SET amount = -amount WHERE id BETWEEN %s AND %s", begin, begin + size)
        return self._run("DELETE FROM ledger WHERE id BETWEEN %s AND %s", begin, begin + size)

    def _truncate(self) -> int:
        self._run("TRUNCATE events")
        return 1


def set_up(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for command in SETUP:
            connection.execute(command)


def table_hash(url: str, table: str) -> tuple[int, str | None]:
    """Returns the number of rows and a hash over all of them in key order. A missing table has none: a sink creates it
    with the first change, and a random workload may not touch a table."""
    order = TABLES.get(table, "id")
    with psycopg.connect(url, options="-c timezone=UTC -c extra_float_digits=3") as connection:
        question = f"SELECT count(*), md5(string_agg(md5(t::text), '' ORDER BY {order})) FROM {table} t"
        try:
            row = connection.execute(question.encode()).fetchone()
        except psycopg.errors.UndefinedTable:
            return 0, None
        assert row is not None
        return row[0], row[1]
