"""PostgreSQL's text format to JSON and back; transactions in order. Without a server."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ottla.client.consumer.types import ConsumerRecord
from ottla.connect.postgres.column_text import column_text, value_text
from ottla.connect.postgres.pgoutput import Column, Relation
from ottla.connect.postgres.snapshot import parse_line
from ottla.connect.postgres.tables import ColumnFacts, facts_then
from ottla.connect.postgres.transaction_order import (
    WAITING_MAX,
    Change,
    NotAChangeError,
    TransactionEnd,
    TransactionOrder,
    parse_change,
)
from ottla.connect.postgres.values import TypeInfo, encoder_of

TYPES = {
    number: TypeInfo(number, name, kind, element, base, ",")
    for number, name, kind, element, base in [
        (20, "int8", "b", 0, 0),
        (25, "text", "b", 0, 0),
        (17, "bytea", "b", 0, 0),
        (701, "float8", "b", 0, 0),
        (16, "bool", "b", 0, 0),
        (1114, "timestamp", "b", 0, 0),
        (1184, "timestamptz", "b", 0, 0),
        (1700, "numeric", "b", 0, 0),
        (1016, "_int8", "b", 20, 0),
        (1009, "_text", "b", 25, 0),
        (1001, "_bytea", "b", 17, 0),
        (5000, "positive", "d", 0, 20),
        (5001, "mood", "e", 0, 0),
    ]
}


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (20, b"-9223372036854775808", -9223372036854775808),
        (5000, b"7", 7),
        (25, b'quo"te \\ \n \xc5\xbe', 'quo"te \\ \n ž'),
        (5001, b"it's ok", "it's ok"),
        (99, b"(1,2)", "(1,2)"),
        (17, b"\\x00ff", "AP8="),
        (701, b"1e+300", 1e300),
        (701, b"NaN", "NaN"),
        (701, b"-Infinity", "-Infinity"),
        (1700, b"12345678901234567890.10", "12345678901234567890.10"),
        (16, b"t", True),
        (1114, b"2026-11-16 12:00:00.5", "2026-11-16T12:00:00.5"),
        (1114, b"0044-03-15 12:00:00 BC", "0044-03-15 12:00:00 BC"),
        (1114, b"-infinity", "-infinity"),
        (1184, b"2026-11-16 12:00:00+00", "2026-11-16T12:00:00Z"),
        (1184, b"infinity", "infinity"),
        (1016, b"{}", []),
        (1016, b"{1,NULL,-3}", [1, None, -3]),
        (1016, b"{{1,2},{3,NULL}}", [[1, 2], [3, None]]),
        (1016, b"[2:3]={1,2}", "[2:3]={1,2}"),
        (1009, rb'{a,"b,c","d\"e","f\\g",NULL,"NULL",""}', ["a", "b,c", 'd"e', "f\\g", None, "NULL", ""]),
        (1009, b'{{"a"},{"}"}}', [["a"], ["}"]]),
        (1001, rb'{"\\x00","\\xff",NULL}', ["AA==", "/w==", None]),
    ],
)
def test_values_as_json(oid: int, text: bytes, expected: Any) -> None:
    assert orjson.loads(encoder_of(oid, TYPES)(text)) == expected


def test_values_as_parameters() -> None:
    assert column_text("bigint")([1, None, -3]) == "{1,NULL,-3}"
    assert column_text("text")(["a", None, 'b"c\\', ""]) == '{"a",NULL,"b\\"c\\\\",""}'
    assert column_text("bytea")(["AP8=", None]) == '{"\\\\x00ff",NULL}'
    assert column_text("boolean")([True, None]) == '{"t",NULL}'
    assert column_text("double precision")([0.1, "NaN", 5]) == '{"0.1","NaN","5"}'
    assert column_text("integer[]")([[1, None], None, "[2:3]={1,2}"]) == '{"{1,NULL}",NULL,"[2:3]={1,2}"}'
    assert value_text("text[]", ["a", 'b"', None]) == '{"a","b\\"",NULL}'
    assert value_text("bytea[]", ["AP8=", None]) == '{"\\\\x00ff",NULL}'


def test_lines_of_copy() -> None:
    assert parse_line(b"1\ttwo\t") == [b"1", b"two", b""]
    assert parse_line(rb"\N" + b"\t" + rb"a\tb\\n\n\\\\" + b"\t" + rb"\\N") == [None, b"a\tb\\n\n\\\\", b"\\N"]


def boundary(offset: int, status: str, name: str, count: int | None = None) -> ConsumerRecord:
    collections = [{"data_collection": "public.t", "event_count": count}]
    value = {"status": status, "id": name, "event_count": count, "data_collections": collections if count else None}
    return ConsumerRecord("p.transaction", 0, offset, 0, None, orjson.dumps(value), ())


def change(topic: str, offset: int, transaction: str, order: int) -> Change:
    return Change(topic, offset, transaction, order, "c", "public", "t", "s", b"{}", {}, (), None)


def test_changes_of_topics_that_run_ahead_come_in_the_order_of_transactions() -> None:
    order = TransactionOrder()
    b1, a1, a2, b2 = (
        change(*each) for each in [("b", 0, "1:1", 2), ("a", 0, "1:1", 1), ("a", 1, "2:2", 1), ("b", 1, "2:2", 2)]
    )
    order.add_change(b1)
    order.add_change(a2)
    assert list(order.take()) == [], "no transaction has begun"
    order.add_boundary(boundary(0, "BEGIN", "1:1"))
    assert list(order.take()) == [], "its first change has not come"
    order.add_change(a1)
    assert list(order.take()) == [a1, b1]
    order.add_boundary(boundary(2, "BEGIN", "2:2"))
    assert list(order.take()) == [], "the first one has not ended"
    order.add_boundary(boundary(1, "END", "1:1", 2))
    assert list(order.take()) == [TransactionEnd("1:1", 1), a2]
    order.add_change(b2)
    order.add_boundary(boundary(3, "END", "2:2", 2))
    assert list(order.take()) == [b2, TransactionEnd("2:2", 3)]
    assert order.collections == {"public.t"}


def test_topics_that_run_far_ahead_wait() -> None:
    order = TransactionOrder()
    for number in range(WAITING_MAX):
        order.add_change(change("b", number, "1:1", number + 2))
    assert order.crowded_topics == ["b"]
    order.add_boundary(boundary(0, "BEGIN", "1:1"))
    order.add_change(change("a", 0, "1:1", 1))
    assert len(list(order.take())) == WAITING_MAX + 1
    assert order.crowded_topics == []


@pytest.mark.parametrize("value", [b"", b"{", b"{}", b"[1]", b'{"op":"c","source":{},"transaction":null}'])
def test_what_is_no_change(value: bytes) -> None:
    with pytest.raises(NotAChangeError):
        parse_change(ConsumerRecord("p.public.t", 0, 0, 0, b"{}", value, ()))
    with pytest.raises(NotAChangeError):
        TransactionOrder().add_boundary(ConsumerRecord("p.transaction", 0, 0, 0, b"{}", value, ()))


def test_columns_that_were_renamed_since() -> None:
    def relation(*names: str) -> Relation:
        return Relation(1, "public", "t", "d", tuple(Column(name, 25, -1, False) for name in names))

    def facts(**numbers: int) -> dict[str, ColumnFacts]:
        return {name: ColumnFacts(number, "text", None) for name, number in numbers.items()}

    def numbers(then: Relation, now: dict[str, ColumnFacts], before: dict[str, ColumnFacts]) -> dict[str, int]:
        return {name: each.number for name, each in facts_then(then, now, before).items()}

    assert numbers(relation("id", "old"), facts(id=1, new=2), {}) == {"id": 1, "old": 2}
    assert numbers(relation("id", "old", "c"), facts(id=1, new=2, c=3, added=4), {}) == {"id": 1, "old": 2, "c": 3}
    assert numbers(relation("id", "old"), facts(id=1, new=2, added=3), {}) == {"id": 1, "old": 2}
    assert numbers(relation("id", "a", "b"), facts(id=1, new=3), {}) == {"id": 1}, "one of them was dropped: which?"
    assert numbers(relation("id", "a", "b"), facts(id=1, new=3), facts(a=2, b=3)) == {"id": 1, "a": 2, "b": 3}
