"""SELECT over topics by `ottla sql`: existing and new records, inferred or declared columns, and mistakes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from ottla.cli.program import main
from ottla.spark.sql.avro_values import AvroCodec
from ottla.spark.sql.catalog import Catalog
from ottla.spark.sql.context import Context
from ottla.spark.sql.parser import parse
from ottla.spark.sql.plans import shape_of
from ottla.spark.sql.selects import select_live
from ottla.spark.sql.statements import Select
from ottla.testing import Cluster
from tests.spark.topics import NewTopic, produce, read_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 120
CLICKS = [("ann", "/", 0), ("bob", "/", 20), ("ann", "/a", 59), ("ann", "/", 61), ("bob", "/a", 130)]
Sql = Callable[..., tuple[int, list[Any], str]]


def click(user: str, page: str, second: int) -> bytes:
    moment = f"2026-11-16T12:{second // 60:02}:{second % 60:02}Z"
    return json.dumps({"user": user, "page": page, "ts": moment, "n": second}).encode()


@pytest.fixture
def sql(spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sql:
    """Returns the exit code, the rows and the messages."""

    def run(text: str, *options: str) -> tuple[int, list[Any], str]:
        where = ["--directory", str(tmp_path / "sql"), "-b", cluster.bootstrap_servers]
        code = main(["sql", text, "--json", *where, *options])
        said = capsys.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], said.err

    return run


@pytest.fixture
def clicks(cluster: Cluster, new_topic: NewTopic) -> str:
    topic = new_topic(2, prefix="clicks")
    values = [click(*each) for each in CLICKS]
    produce(cluster.bootstrap_servers, topic, values, key=lambda number: CLICKS[number][0].encode())
    return topic


def test_a_topic_that_nobody_declared_has_the_columns_of_its_json(sql: Sql, clicks: str) -> None:
    code, rows, _ = sql(
        f"SELECT user, n + 1 AS m, hour(ts) AS h FROM `{clicks}` WHERE page = '/a' ORDER BY n", "--once"
    )
    assert (code, rows) == (0, [{"user": "ann", "m": 60, "h": 12}, {"user": "bob", "m": 131, "h": 12}])
    code, rows, _ = sql(
        f"SELECT window.start AS start, page, count(*) AS views FROM `{clicks}` "
        "GROUP BY page, window(ts, '1 minute') ORDER BY start, page",
        "--once",
    )
    start = "2026-11-16T12:0{}:00+00:00"
    assert [(row["start"], row["page"], row["views"]) for row in rows] == [
        (start.format(0), "/", 2),
        (start.format(0), "/a", 1),
        (start.format(1), "/", 1),
        (start.format(2), "/a", 1),
    ]
    code, rows, _ = sql(
        f"SELECT _key, _offset FROM `{clicks}` WHERE user = 'ann' ORDER BY _offset", "--once", "--limit", "2"
    )
    assert [row["_key"] for row in rows] == ["ann", "ann"]
    assert rows[0]["_offset"] < rows[1]["_offset"]
    code, rows, _ = sql(f"SELECT count(*) AS n FROM `{clicks}` a JOIN `{clicks}` b USING (user)", "--once")
    assert rows == [{"n": 13}]
    assert sql(f"SELECT user FROM `{clicks}` WHERE 1 = 0", "--once")[:2] == (0, [])
    code, rows, _ = sql(f"DESCRIBE `{clicks}`")
    assert [(row["column"], row["type"], row["remark"]) for row in rows] == [
        ("user", "STRING", ""),
        ("page", "STRING", ""),
        ("ts", "TIMESTAMP", "event time, watermark 10 minutes"),
        ("n", "BIGINT", ""),
    ]


def test_rows_come_as_they_are_written_until_the_limit(sql: Sql, clicks: str) -> None:
    code, rows, _ = sql(f"SELECT user, n FROM `{clicks}` WHERE n < 60", "--limit", "3")
    assert code == 0
    assert sorted(row["n"] for row in rows) == [0, 20, 59]


@pytest.mark.parametrize(
    ("select", "keys", "missing", "mode"),
    [
        ("user FROM shapes", (), (), "append"),
        ("user FROM shapes ORDER BY n", (), (), "append"),
        ("page, count(*) FROM shapes GROUP BY page", ("page",), (), "update"),
        ("page, count(*) AS n FROM shapes GROUP BY page ORDER BY n", ("page",), (), "complete"),
        ("page, count(*) FROM shapes GROUP BY page LIMIT 3", ("page",), (), "complete"),
        ("page, count(*) FROM shapes GROUP BY page, user", (), ("user",), "complete"),
        ("window.start AS s, count(*) FROM shapes GROUP BY window(ts, '1 minute')", ("s",), (), "update"),
        ("upper(page) AS p, max(n) FROM shapes GROUP BY upper(page)", ("p",), (), "update"),
        ("p, m FROM (SELECT page AS p, max(n) AS m FROM shapes GROUP BY page)", ("p",), (), "update"),
        ("DISTINCT user, page FROM shapes", ("user", "page"), (), "update"),
    ],
)
def test_what_tells_groups_apart(
    spark: SparkSession, select: str, keys: tuple[str, ...], missing: tuple[str, ...], mode: str
) -> None:
    columns = ["'u' AS user", "'p' AS page", "timestamp_seconds(id) AS ts", "id AS n"]
    spark.range(1).selectExpr(*columns).createOrReplaceTempView("shapes")
    found = shape_of(spark.sql(f"SELECT {select}"))
    assert (found.keys, found.missing, found.live_mode) == (keys, missing, mode)


def test_groups_are_told_as_they_change(spark: SparkSession, cluster: Cluster, clicks: str, tmp_path: Path) -> None:
    text = f"SELECT page, count(*) AS views FROM `{clicks}` GROUP BY page"
    (statement,) = parse(text)
    assert isinstance(statement, Select)
    context = Context(cluster.bootstrap_servers, Catalog(str(tmp_path)), lambda: spark, lambda _: None)
    told: list[tuple[str, dict[str, int]]] = []

    def on_rows(columns: Any, rows: list[Any], mode: str, shape: Any) -> None:
        assert shape.keys == ("page",)
        told.append((mode, dict(rows)))

    live = select_live(context, statement, text, on_rows, start="earliest", every="200 milliseconds")
    try:
        wait_until(lambda: bool(told), live.poll)
        produce(cluster.bootstrap_servers, clicks, [click("zed", "/a", 200), b"no JSON"])
        wait_until(lambda: told[-1][1].get("/a") == 3, live.poll)
        letters = f"{clicks}-dead-letters"
        wait_until(lambda: letters in context.running, live.poll)
        wait_until(lambda: len(read_committed(cluster.bootstrap_servers, letters)) == 1, live.poll)
    finally:
        live.running.stop()
        context.stop()
    assert told[0] == ("update", {"/": 3, "/a": 2})
    assert told[-1] == ("update", {"/a": 3})  # unchanged groups are not printed again


def wait_until(condition: Callable[[], bool], also: Callable[[], object]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        also()
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_declared_columns_and_bad_records(sql: Sql, cluster: Cluster, new_topic: NewTopic) -> None:
    topic, servers = new_topic(1, prefix="orders"), cluster.bootstrap_servers
    good = [b'{"amount": 5, "at": 1794800000000}', b'{"amount": 7, "at": "2026-11-16T12:00:00Z", "id": "x"}', None]
    bad = [b'{"amount": "many"}', b"nope", b"[1]", b'{"amount": 1, "at": "soon"}', b"\xff\xfe", b'{"amount": 1} x']
    bad += [b'{"amount": 1} {"amount": 2}', b'{"amount": 1}],[{"amount": 2}']
    produce(servers, topic, [*good, *bad], key=lambda number: b"k%d" % number, headers=(("own", b"1"),))
    code, _, said = sql(
        f"""CREATE STREAM orders (id STRING, amount BIGINT, at TIMESTAMP, WATERMARK FOR at DELAY '1 minute')
            WITH (topic = '{topic}', format = 'json', key = 'id', dead_letters = '{topic}-bad')"""
    )
    assert (code, "declared stream orders" in said) == (0, True)
    code, rows, said = sql("SELECT id, amount, unix_millis(at) AS at FROM orders ORDER BY _offset", "--once")
    assert (code, rows) == (
        0,
        [
            {"id": "k0", "amount": 5, "at": 1794800000000},
            {"id": "x", "amount": 7, "at": 1794830400000},
            {"id": "k2", "amount": None, "at": None},
        ],
    )
    assert f"8 records of orders did not parse: see topic {topic}-bad" in said
    letters = read_committed(servers, f"{topic}-bad")
    assert [each.value for each in letters] == bad
    headers = [dict(each.headers) for each in letters]
    assert [each["reason"].decode() for each in headers if each["reason"]] == [
        "amount is not of type BIGINT",
        "the value is not JSON",
        "the value is not a JSON object",
        "at is not a TIMESTAMP",
        "the value is not UTF-8",
        *["the value is not JSON"] * 3,
    ]
    assert (letters[0].key, headers[0]["own"], headers[0]["topic"]) == (b"k3", b"1", topic.encode())
    assert [(each["partition"], each["offset"]) for each in headers] == [
        (b"0", b"%d" % number) for number in range(3, 11)
    ]
    sql("SELECT count(*) FROM orders", "--once")
    assert len(read_committed(servers, f"{topic}-bad")) == 8  # once, however often the stream is read


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": "long"}},
        {"name": "by", "type": {"type": "map", "values": "int"}},
    ],
}


def test_avro_with_and_without_confluents_prefix(
    sql: Sql, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    fastavro.parse_schema(AVRO)
    codec = AvroCodec(json.dumps(AVRO), "none")
    rows = [{"id": name, "at": 1794800000000, "lines": [1, 2], "by": {"a": 3}} for name in ("x", None)]
    values = [codec.encode(row) for row in rows]
    topic, out = new_topic(1, prefix="avro"), new_topic(1, prefix="avro-out")
    produce(cluster.bootstrap_servers, topic, [*values, b"\0\0\0\0\x07" + values[0], b"\x02\x04", values[0] + b"!"])
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    schema = f"format = 'avro', avro_schema_file = '{tmp_path / 'order.avsc'}'"
    code, found, said = sql(
        f"CREATE STREAM a WITH (topic = '{topic}', {schema}, dead_letters = 'none');"
        f"CREATE STREAM b WITH (topic = '{out}', {schema});"
        "SELECT id, unix_millis(at) AS at, lines, by['a'] AS a FROM a ORDER BY _offset;"
        "INSERT INTO b SELECT id, at, lines, by FROM a WHERE id = 'x'",
        "--once",
    )
    expected = {"id": "x", "at": 1794800000000, "lines": [1, 2], "a": 3}
    assert (code, found) == (0, [expected, {**expected, "id": None}, expected])
    assert "2 records of a did not parse: they are skipped" in said
    written = [each.value for each in read_committed(cluster.bootstrap_servers, out)]
    assert written == [values[0], values[0]]


@pytest.fixture
def odd_topics(cluster: Cluster, new_topic: NewTopic) -> dict[str, str]:
    named = {name: new_topic(1, prefix=name) for name in ("empty", "text")}
    produce(cluster.bootstrap_servers, named["text"], [b"hello"])
    return named


def test_mistakes_are_told_with_their_place_and_exit_code_2(sql: Sql, clicks: str, odd_topics: dict[str, str]) -> None:
    empty, text = odd_topics["empty"], odd_topics["text"]
    for statement, place, sentence in [
        ("SELECT user FROM nowhere", "line 1, column 18", "there is no stream or topic nowhere"),
        (f"SELECT x\nFROM `{empty}`", "line 2, column 6", "is empty, so its columns are unknown"),
        (f"SELECT x FROM `{text}`", "line 1, column 15", "values of text"),
        (f"SELECT usr FROM `{clicks}`", "line 1, column 8", "there is no column usr; there are"),
        (f"SELECT user, FROM `{clicks}`", "line 1, column", "FROM"),
        ("SELECT (user", "line 1, column 13", "end of input"),
        ("SELECT nosuch(1)", "line 1, column 8", "there is no function nosuch"),
        ("SELECT a FROM b.c", "line 1, column 15", "in backticks: `b.c`"),
        ("CREATE STREAM s (a INTT) WITH (topic = 'x')", "line 1, column 18", "INTT is not a type"),
        ("CREATE STREAM s (a INT) WITH (topic = 'nowhere')", "line 1, column 39", "there is no topic nowhere"),
        ("CREATE STREAM s AS\nSELECT a FROM nowhere", "line 2, column 15", "no stream or topic nowhere"),
        (f"INSERT INTO nowhere SELECT * FROM `{clicks}`", "line 1, column 1", "there is no topic nowhere"),
        (f"CREATE TABLE t AS SELECT user FROM `{clicks}`", "line 1, column 1", "needs a GROUP BY"),
        (
            f"CREATE TABLE t AS SELECT count(*) AS n FROM `{clicks}` GROUP BY user",
            "line 1, column 1",
            "select user too",
        ),
        (
            f"CREATE STREAM s AS SELECT user, count(*) AS n FROM `{clicks}` GROUP BY user",
            "line 1, column 1",
            "to get every change",
        ),
        ("DROP STREAM s", "line 1, column 13", "there is no stream s"),
        ("GRANT ALL", "line 1, column 1", "GRANT is not a supported statement"),
    ]:
        code, rows, said = sql(statement, "--once")
        assert (code, rows) == (2, []), (statement, said)
        assert place in said, said
        assert sentence in said, said
        assert "Traceback" not in said
    assert sql("SHOW TOPICS", "--from", "there")[0] == 2
