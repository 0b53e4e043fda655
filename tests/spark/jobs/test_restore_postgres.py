"""Tables restored into a real PostgreSQL: every value unchanged, and the table complete or absent."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from ottla.archive.failures import PipelineError
from ottla.spark.jobs.changes import Envelope
from ottla.spark.jobs.live_log import BrokerLog
from ottla.spark.jobs.restore import AtEnd, restore
from ottla.spark.jobs.restore_postgres import copy_text, has_table, split_url, without_password, write_table
from ottla.spark.jobs.restore_targets import parse_target, table_for_output, write_output
from ottla.spark.jobs.table_history import History
from ottla.testing import Cluster
from tests.spark.jobs.change_logs import Model, produce
from tests.support.postgres_server import running_postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD_TEXTS = ["", "\\.", "a\n\\.\nb", "tab\there", "\\N", 'quo"te', "it's", "\r\n", "žluťoučký 🐎", "x" * 10_000]
NOON = datetime.datetime(2026, 11, 16, 12, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres() as url:
        yield url


def ask(url: str, question: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(question).fetchall()


def tables(url: str) -> list[str]:
    found = ask(url, "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname !~ '^(pg_|inf)' ORDER BY 1")
    return [name for (name,) in found]


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def write(url: str, table: str, *batches: pa.RecordBatch, overwrite: bool = False) -> None:
    write_table(url, table, batches[0].schema, batches, overwrite=overwrite)


def test_a_changed_table_is_restored_with_its_deletes(
    spark: SparkSession, cluster: Cluster, new_topic: Callable[..., str], postgres: str
) -> None:
    topic, log, model = new_topic(1), BrokerLog(cluster.bootstrap_servers), Model(1)
    produce(cluster.bootstrap_servers, topic, model.grow(random.Random(2), 100))
    found = restore(spark, History.open(topic, archive=None, log=log), AtEnd(), Envelope.PLAIN)
    rows = table_for_output(found.rows, key_column="id", with_origin=True)
    target = parse_target(f"{postgres}#restored", "unused")
    write_output(rows, target)
    with pytest.raises(PipelineError, match="#restored already exists; --overwrite replaces it"):
        write_output(rows, target)
    write_output(rows, target, overwrite=True)
    expected = sorted((each["id"], each["n"]) for each in map(json.loads, model.table(model.ends()).values()))
    assert 0 < len(expected) < 40, "some are deleted"
    assert ask(postgres, 'SELECT id, n FROM restored ORDER BY id COLLATE "C"') == expected
    kinds = ask(postgres, "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'restored'")
    assert dict(kinds) == {
        "id": "text",
        "n": "bigint",
        "_partition": "bigint",
        "_offset": "bigint",
        "_timestamp": "timestamp with time zone",
    }


def test_every_value_comes_back_as_it_was(postgres: str) -> None:
    count = len(ODD_TEXTS)
    written = batch_of(
        key=pa.array([f"k{number}" for number in range(count)]),
        text=pa.array(ODD_TEXTS),
        none=pa.nulls(count, pa.string()),
        whole=pa.array([2**63 - 1, -(2**63), None, *range(count - 3)], pa.int64()),
        real=pa.array([0.1, 1e300, float("inf"), None, *([1.5] * (count - 4))], pa.float64()),
        exact=pa.array(
            [decimal.Decimal("1.10"), None, *([decimal.Decimal("-2.00")] * (count - 2))], pa.decimal128(10, 2)
        ),
        truth=pa.array([True, False, None, *([True] * (count - 3))]),
        time=pa.array([NOON, None, *([NOON] * (count - 2))], pa.timestamp("us", tz="UTC")),
        day=pa.array([NOON.date()] * count, pa.date32()),
        raw=pa.array([b"\x00\\\n\xff", None, *([b""] * (count - 2))], pa.binary()),
        nested=pa.array([[1, 2], None, *([[]] * (count - 2))], pa.list_(pa.int64())),
    )
    write(postgres, "values", written.slice(0, 3), written.slice(3, 0), written.slice(3))
    found = ask(postgres, 'SELECT * FROM "values" ORDER BY key')
    assert found == [tuple(row.values()) for row in written.to_pylist()]


def test_the_table_that_is_there_stays_until_all_of_the_new_one_is(postgres: str) -> None:
    old, new = (batch_of(id=pa.array([number]), name=pa.array([name])) for number, name in ((1, "old"), (2, "new")))
    write(postgres, "swapped", old)
    seen: list[list[tuple[Any, ...]]] = []

    def batches(*, fails: bool) -> Iterator[pa.RecordBatch]:
        yield new
        seen.append(ask(postgres, "SELECT id, name FROM swapped"))
        if fails:
            raise KeyboardInterrupt

    before = tables(postgres)
    with pytest.raises(KeyboardInterrupt):
        write_table(postgres, "swapped", new.schema, batches(fails=True), overwrite=True)
    assert ask(postgres, "SELECT id, name FROM swapped") == [(1, "old")]
    assert tables(postgres) == before, "nothing is left of it"
    write_table(postgres, "swapped", new.schema, batches(fails=False), overwrite=True)
    assert seen == [[(1, "old")]] * 2
    assert ask(postgres, "SELECT id, name FROM swapped") == [(2, "new")]
    with pytest.raises(PipelineError, match=r"already exists.*Nothing was changed"):
        write(postgres, "swapped", old)
    assert ask(postgres, "SELECT id, name FROM swapped") == [(2, "new")]
    assert tables(postgres) == before


def test_a_schema_of_its_own_and_what_is_refused(postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE SCHEMA history")
    row = batch_of(id=pa.array([1]))
    assert not has_table(postgres, "history.rows")
    write(postgres, "history.rows", row)
    assert has_table(postgres, "history.rows")
    for batch, refusal in (
        (batch_of(id=pa.array([1, 1])), "could not create unique index|duplicate key"),
        (batch_of(id=pa.array(["\x00"])), "invalid byte sequence"),
    ):
        with pytest.raises(PipelineError, match=refusal):
            write(postgres, "refused", batch)
    with pytest.raises(PipelineError, match="longer than the 63 bytes"):
        write(postgres, "refused", batch_of(**{"n" * 64: pa.array([1])}))
    assert not has_table(postgres, "refused")
    with pytest.raises(PipelineError, match="Nothing was changed"):
        has_table(f"{postgres}&dbname=nowhere", "rows")


def test_addresses() -> None:
    assert split_url("postgresql://ann@db/shop#s.t", "unused") == ("postgresql://ann@db/shop", "s.t")
    assert split_url("postgres://db/shop", "shop.public.orders") == ("postgres://db/shop", "shop_public_orders")
    assert without_password("postgresql://ann:secret@db/shop#t") == "postgresql://ann:***@db/shop#t"
    assert without_password("postgresql:///shop?host=/run") == "postgresql:///shop?host=/run"
    assert "secret" not in without_password("postgresql://db/shop?user=ann&password=secret&sslmode=require")
    assert parse_target("postgresql://ann:secret@db/shop", "t").shown == "postgresql://ann:***@db/shop#t"
    for wrong in ("postgresql://", "postgresql://db/shop#.t", f"postgresql://db/shop#{'t' * 64}"):
        with pytest.raises(PipelineError):
            split_url(wrong, "t")


def test_rows_as_text() -> None:
    rows = batch_of(a=pa.array(["x\ty\\", None]), b=pa.array([1, None]))
    assert copy_text(rows) == b"x\\ty\\\\\t1\n\\N\t\\N\n"


def test_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(PipelineError, match=r"pip install 'ottla\[postgres\]'"):
        has_table("postgresql://nobody@127.0.0.1:1/x", "t")
