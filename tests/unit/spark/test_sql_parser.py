"""Statements of `ottla sql`: their meaning, and the positions of errors."""

from __future__ import annotations

import pytest

from ottla.spark.sql.failures import SqlError, place
from ottla.spark.sql.parser import parse
from ottla.spark.sql.statements import (
    Column,
    CreateAs,
    CreateStream,
    Describe,
    Drop,
    Insert,
    Resume,
    Select,
    Show,
    Watermark,
)
from ottla.spark.sql.tokens import is_ended, statements_of, tokens_of
from ottla.spark.sql.types import is_type


def test_texts_comments_and_names_may_have_semicolons() -> None:
    text = "SELECT ';', \"a;b\", `c;d` -- one; comment\nFROM x /* and; another */; SHOW TOPICS;"
    assert [len(each) for each in statements_of(text)] == [8, 2]


def test_what_quotes_mean() -> None:
    values = [each.value for each in tokens_of(r"""'it''s' 'a\'b\n' "x""y" `a``b` 1.5e3 abc""")]
    assert values == ["it's", "a'b\n", 'x"y', "a`b", "1.5e3", "abc"]


@pytest.mark.parametrize(
    ("text", "ended"),
    [("SELECT 1;", True), ("SELECT 1", False), ("SELECT ';", False), ("SELECT 1 -- ;", False), ("", False)],
)
def test_a_prompt_waits_for_the_semicolon(text: str, ended: bool) -> None:
    assert is_ended(text) is ended


def test_a_stream_is_declared() -> None:
    (made,) = parse(
        """CREATE STREAM clicks (
             user STRING, ts TIMESTAMP, tags ARRAY<STRUCT<a: INT, b: DECIMAL(10, 2)>>, `a b` BIGINT,
             WATERMARK FOR ts DELAY '1 minute'
           ) WITH (topic = 'web-clicks', FORMAT = 'json', dead_letters = none)"""
    )
    assert isinstance(made, CreateStream)
    assert made.columns == (
        Column("user", "STRING"),
        Column("ts", "TIMESTAMP"),
        Column("tags", "ARRAY<STRUCT<a: INT, b: DECIMAL(10, 2)>>"),
        Column("a b", "BIGINT"),
    )
    assert made.watermark == Watermark("ts", "1 minute")
    assert made.options.values == {"topic": "web-clicks", "format": "json", "dead_letters": "none"}


def test_a_watermark_may_stand_after_the_columns_or_the_options() -> None:
    for text in (
        "CREATE STREAM c (ts TIMESTAMP) WATERMARK FOR ts DELAY '5 seconds' WITH (topic='c')",
        "CREATE STREAM c (ts TIMESTAMP) WITH (topic='c') WATERMARK FOR ts DELAY '5 seconds'",
    ):
        (made,) = parse(text)
        assert isinstance(made, CreateStream)
        assert made.watermark == Watermark("ts", "5 seconds")


def test_queries_keep_their_select_with_its_place() -> None:
    text = "CREATE TABLE pages\n  WITH (topic='p') AS\n  SELECT page FROM clicks GROUP BY page; SHOW QUERIES"
    made, _ = parse(text)
    assert isinstance(made, CreateAs)
    assert (made.name, made.is_table, made.options.values) == ("pages", True, {"topic": "p"})
    assert made.select.body.strip() == "SELECT page FROM clicks GROUP BY page"
    assert made.select.body.index("SELECT") == text.index("SELECT")
    assert place(made.select.body, made.select.body.index("clicks")) == place(text, text.index("clicks"))
    assert made.normal == "CREATE TABLE pages WITH ( topic = 'p' ) AS SELECT page FROM clicks GROUP BY page"


def test_a_select_may_begin_with_its_own_with() -> None:
    select, made, insert = parse(
        "WITH a AS (SELECT 1 AS x) SELECT x FROM a;"
        "CREATE STREAM s AS WITH a AS (SELECT * FROM t) SELECT * FROM a;"
        "INSERT INTO `out-1` WITH (key='x') WITH a AS (SELECT * FROM t) SELECT _Key AS x FROM a"
    )
    assert isinstance(select, Select)
    assert isinstance(made, CreateAs)
    assert made.select.body.strip().startswith("WITH a AS (SELECT * FROM t)")
    assert isinstance(insert, Insert)
    assert (insert.into, insert.options.values) == ("out-1", {"key": "x"})
    assert "_key" in insert.select.names


def test_the_small_statements() -> None:
    assert parse("SHOW streams; LIST TOPICS; DESCRIBE `a.b`; DROP TABLE IF EXISTS t; RESUME; RESUME ALL; RESUME q") == [
        Show("STREAMS"),
        Show("TOPICS"),
        Describe("a.b"),
        Drop("TABLE", "t", if_exists=True),
        Resume(None),
        Resume(None),
        Resume("q"),
    ]


def test_statements_that_differ_in_space_and_comments_are_the_same() -> None:
    one, other = parse("INSERT INTO a SELECT x FROM b; INSERT  INTO a -- why\n SELECT x\nFROM b")
    assert isinstance(one, Insert)
    assert isinstance(other, Insert)
    assert one.normal == other.normal
    assert other.source == "INSERT  INTO a -- why\n SELECT x\nFROM b"


@pytest.mark.parametrize(
    ("text", "where", "sentence"),
    [
        ("SELEKT 1", "SELEKT", "is not a supported statement"),
        ("UPDATE t SET a = 1", "UPDATE", "is not a supported statement"),
        ("SELECT 'a", "'a", "a string starts here and does not end"),
        ("SELECT `a", "`a", "a name in backticks starts here"),
        ("SELECT /* a", "/*", "a comment starts here"),
        ("CREATE VIEW v AS SELECT 1", "VIEW", "STREAM or TABLE is expected"),
        ("CREATE STREAM web-clicks (a INT) WITH (topic='t')", "web", "in backticks"),
        ("CREATE STREAM s (a) WITH (topic='t')", ")", "the type of column a"),
        ("CREATE STREAM s (a INT, A INT) WITH (topic='t')", "A INT", "two columns A"),
        ("CREATE STREAM s (a INT) WITH (topik='t')", "topik", "is not an option here"),
        ("CREATE STREAM s (a INT) WITH (topic='t', topic='u')", "topic='u'", "given twice"),
        ("CREATE STREAM s (a INT) WITH (topic 't')", "'t'", "= is expected"),
        ("CREATE STREAM s (a INT) WITH (topic='t') x", "x", "should end"),
        ("CREATE STREAM s", None, "columns, or WITH"),
        ("CREATE TABLE t (a INT) WITH (topic='t')", "CREATE", "a table needs a query"),
        ("CREATE STREAM s AS INSERT INTO t", "INSERT", "SELECT is expected"),
        ("INSERT clicks SELECT 1", "clicks", "INTO is expected"),
        ("SHOW TABLETS", "TABLETS", "one of STREAMS"),
        ("DROP TOPIC t", "TOPIC", "STREAM, TABLE or QUERY"),
        ("DESCRIBE", None, "the name of a stream"),
        ("SHOW TOPICS now", "now", "should end"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, where: str | None, sentence: str) -> None:
    whole = f"SHOW TOPICS;\n  {text};"
    with pytest.raises(SqlError) as caught:
        parse(whole)
    position = whole.index(where, 15) if where is not None else len(whole) - 1
    assert sentence in caught.value.sentence
    assert caught.value.position == position
    line, column = place(whole, position)
    message = str(caught.value).split("\n")
    assert message[0].startswith(f"line {line}, column {column}: ")
    assert message[2].index("^") == column + 1  # below the position, after two spaces


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BIGINT", True),
        ("decimal(10, 2)", True),
        ("DECIMAL(5)", True),
        ("ARRAY<MAP<STRING, STRUCT<a: INT, `b c` DOUBLE>>>", True),
        ("BIGINTS", False),
        ("ARRAY<", False),
        ("ARRAY<INT", False),
        ("MAP<STRING>", False),
        ("STRUCT<a: INT,>", False),
        ("DECIMAL(a)", False),
        ("INT NOT NULL", False),
        ("", False),
    ],
)
def test_types_are_known_without_spark(text: str, expected: bool) -> None:
    assert is_type(text) is expected
