"""From a real PostgreSQL through its change log into tables that equal the source, row by row."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import psycopg

from ottla.archive.store import Store
from ottla.spark.jobs.changes import Envelope
from ottla.spark.jobs.live_log import BrokerLog
from ottla.spark.jobs.materialize import materialize
from ottla.spark.jobs.table_history import History
from ottla.spark.jobs.tables import Table
from ottla.testing import Cluster
from tests.connect.change_topics import column_kinds, expected_rows, normal_row
from tests.connect.in_process import confirmed, running_source
from tests.connect.workload import WHOLE_ROWS, Workload, set_up
from tests.support.postgres_server import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = 1_500


def change(url: str, changes: int, seed: int, **so_far: Any) -> Workload:
    with psycopg.connect(url, autocommit=True) as connection:
        workload = Workload(connection, seed, **so_far)
        while workload.changes < changes:
            workload.step()
        return workload


def test_tables_of_a_database_equal_it(spark: SparkSession, cluster: Cluster, tmp_path: Path, seed: int) -> None:
    """With a snapshot, and with truncates of `events`, after which its earlier rows do not count."""
    servers = cluster.bootstrap_servers

    async def capture(url: str) -> None:
        before = change(url, CHANGES, seed)
        async with running_source(servers, "tables", url, list(WHOLE_ROWS)):
            change(url, CHANGES, seed + 1, next_id=before.next_id, next_entry=before.next_entry)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("TRUNCATE events")
                connection.execute("INSERT INTO events VALUES (-1, 'after it')")
            await confirmed(url)

    with PostgresServer(settings={"wal_level": "logical"}) as server:
        set_up(server.url)
        asyncio.run(capture(server.url))
        compared = 0
        for name in WHOLE_ROWS:
            history = History.open(f"tables.public.{name}", archive=None, log=BrokerLog(servers))
            table = Table(Store(str(tmp_path / name)))
            snapshot = materialize(spark, history, table, Envelope.DEBEZIUM)
            expected = expected_rows(server.url, name)
            if snapshot is None:  # the workload is random: a table may never have had a row
                assert not expected, name
                continue
            kinds = column_kinds(server.url, name)
            values = [row["_value"] for row in table.read(spark, snapshot).select("_value").collect()]
            found = [normal_row(kinds, orjson.loads(value)) for value in values]
            assert len(found) == len(dict(found)), f"{name}: a row is there twice"
            assert dict(found) == expected
            compared += 1
        assert compared >= 2, "the workload changed hardly anything"
