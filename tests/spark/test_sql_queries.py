"""Queries of `ottla sql` that write topics: streams, tables, inserts; and that they resume where they stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.cli.program import main
from ottla.cli.sql.prompt import prompt
from ottla.cli.sql.run import DisplayOptions
from ottla.spark.sql.catalog import Catalog
from ottla.spark.sql.context import Context
from ottla.testing import Cluster
from tests.spark.topics import NewTopic, produce, produce_transaction, read_committed, with_admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Sql = Callable[..., tuple[int, list[Any], str]]


def view(page: str | None, second: int) -> bytes:
    return json.dumps({"page": page, "ts": f"2026-11-16T12:{second // 60:02}:{second % 60:02}Z"}).encode()


@pytest.fixture
def sql(spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sql:
    """Runs statements with `--once`; returns the exit code, the rows and the messages."""

    def run(text: str, *options: str) -> tuple[int, list[Any], str]:
        file = tmp_path / "statements.sql"
        file.write_text(text)
        where = ["--directory", str(tmp_path / "sql"), "-b", cluster.bootstrap_servers]
        code = main(["sql", "--file", str(file), "--once", "--json", *where, *options])
        said = capsys.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], said.err

    return run


def records(cluster: Cluster, topic: str) -> list[tuple[str | None, Any]]:
    found = read_committed(cluster.bootstrap_servers, topic)
    return [(None if each.key is None else each.key.decode(), json.loads(each.value or b"null")) for each in found]


def test_a_table_is_upserted_and_goes_on_after_a_restart(
    sql: Sql, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, servers = new_topic(1, prefix="views"), cluster.bootstrap_servers
    table = f"per-page-of-{topic}"
    produce(servers, topic, [view("/", 1), view("/a", 2), view("/", 3), view(None, 3)])
    produce_transaction(servers, topic, [view("/never", 3)], commit=False)
    create = f"CREATE TABLE `{table}` AS SELECT page, count(*) AS views FROM `{topic}` GROUP BY page"
    code, _, said = sql(create)
    assert (code, f"created topic {table}, compacted" in said) == (0, True), said
    assert sorted(records(cluster, table)) == [
        ("/", {"page": "/", "views": 2}),
        ("/a", {"page": "/a", "views": 1}),
        ("null", {"page": None, "views": 1}),  # a compacted topic takes no record without a key
    ]
    described = with_admin(servers, lambda admin: admin.describe_topic(table))
    assert described.configs["cleanup.policy"] == "compact"

    produce(servers, topic, [view("/", 4)])
    code, _, said = sql(create + " -- the same, with a comment")
    assert code == 0, said
    assert records(cluster, table)[3:] == [("/", {"page": "/", "views": 3})]  # neither repeated nor duplicated
    produce(servers, table, [None], key=b"null")
    code, rows, _ = sql(f"SELECT page, views FROM `{table}` ORDER BY page")
    assert rows == [{"page": "/", "views": 3}, {"page": "/a", "views": 1}]  # the last row of each key, if it has one

    code, _, said = sql(create.replace("count(*)", "count(*) * 2"))
    assert (code, "another statement" in said, f"DROP TABLE {table}" in said) == (2, True, True)
    code, rows, _ = sql("SHOW TABLES; SHOW QUERIES")
    assert [(row.get("table") or row["query"]) for row in rows] == [table, table]
    checkpoints = tmp_path / "sql" / "checkpoints"
    assert [each.name for each in checkpoints.iterdir()] == [table.lower()]
    code, rows, _ = sql(f"DROP TABLE `{table}`; SHOW TABLES")
    assert (code, rows, list(checkpoints.iterdir())) == (0, [], []), "a later one of this name begins anew"


def test_streams_are_chained_and_windows_end(sql: Sql, cluster: Cluster, new_topic: NewTopic) -> None:
    topic, servers = new_topic(1, prefix="views"), cluster.bootstrap_servers
    produce(servers, topic, [view("/", 1), view("/a", 2), view("/", 3), view("/", 200), view("/", 15 * 60)])
    script = f"""
        CREATE STREAM views (page STRING, ts TIMESTAMP)
          WATERMARK FOR ts DELAY '1 minute'
          WITH (topic = '{topic}', dead_letters = 'none');
        CREATE STREAM `home-{topic}` WITH (key = 'page', partitions = 1, dead_letters = 'none') AS
          SELECT page, ts, 'home' AS kind FROM views WHERE page = '/';
        CREATE STREAM `minutes-{topic}` AS
          SELECT window.start AS minute, count(*) AS views FROM `home-{topic}` GROUP BY window(ts, '1 minute');
    """
    code, _, said = sql(script)
    assert code == 0, said
    home = records(cluster, f"home-{topic}")
    assert [(key, row["kind"], row["ts"][11:19]) for key, row in home] == [
        ("/", "home", "12:00:01"),
        ("/", "home", "12:00:03"),
        ("/", "home", "12:03:20"),
        ("/", "home", "12:15:00"),
    ]
    # The watermark is ten minutes behind: the last minute is not over yet.
    minutes = [row for _, row in records(cluster, f"minutes-{topic}")]
    assert sorted((row["minute"][11:16], row["views"]) for row in minutes) == [("12:00", 2), ("12:03", 1)]


def test_inserts_into_topics_and_into_declared_streams(
    sql: Sql, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, plain, typed = (new_topic(1, prefix=name) for name in ("views", "plain", "typed"))
    servers = cluster.bootstrap_servers
    produce(servers, source, [view("/", 1), view("/a", 2)])
    script = f"""
        INSERT INTO `{plain}` WITH (format = 'string') SELECT upper(page) FROM `{source}`;
        CREATE STREAM typed (kind STRING, page STRING) WITH (topic = '{typed}', key = 'page');
        INSERT INTO typed WITH (name = 'fill-{typed}') SELECT page FROM `{source}` WHERE page <> '/' -- not the first;
    """
    code, _, said = sql(script)
    assert code == 0, said
    assert [each.value for each in read_committed(servers, plain)] == [b"/", b"/A"]
    assert records(cluster, typed) == [("/a", {"kind": None, "page": "/a"})]
    produce(servers, source, [view("/b", 3)])
    # As if a killed run had met bad records: there are none, but the search is pending.
    Catalog(str(tmp_path / "sql")).owe(f"insert-into-{plain}", source)
    code, rows, said = sql(f"RESUME `insert-into-{plain}`; SHOW QUERIES")
    assert (code, sorted(row["query"] for row in rows)) == (0, [f"fill-{typed}", f"insert-into-{plain}"]), said
    assert [each.value for each in read_committed(servers, plain)] == [b"/", b"/A", b"/B"]
    assert f"created topic {source}-dead-letters" in said
    assert not Catalog(str(tmp_path / "sql")).owes(f"insert-into-{plain}", source)
    code, _, said = sql(f"INSERT INTO typed WITH (name = 'other') SELECT page AS paige FROM `{source}`")
    assert (code, "typed has no column paige; it has kind, page" in said) == (2, True)
    assert sql(f"DROP QUERY `fill-{typed}`")[0] == 0


def test_a_prompt_goes_on_after_mistakes(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(1, prefix="views")
    produce(cluster.bootstrap_servers, topic, [view("/", 1)])
    lines = iter(
        ["help", "SELEKT 1;", "SELECT page", f"FROM `{topic}`;", "SHOW", "", "SELECT page FROM nowhere;", "exit"]
    )
    context = Context(cluster.bootstrap_servers, Catalog(str(tmp_path)), lambda: spark, print, every=None)
    prompts: list[str] = []

    def read(shown: str) -> str:
        prompts.append(shown)
        return next(lines)

    prompt(context, DisplayOptions(True, None, "earliest", True, "1 second"), tmp_path, read)
    said = capsys.readouterr()
    assert [json.loads(line) for line in said.out.splitlines()] == [{"page": "/"}]
    assert "SELEKT is not a supported statement" in said.err
    assert "there is no stream or topic nowhere" in said.err
    assert prompts == ["sql> ", "sql> ", "sql> ", "...> ", "sql> ", "...> ", "sql> ", "sql> "]
