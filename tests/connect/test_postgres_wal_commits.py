"""A commit returns only when the log has its WAL: with a real PostgreSQL and a broker that is down."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import psycopg

from ottla.connect.postgres_wal.receiver import Receiver
from ottla.connect.postgres_wal.status_reports import report_status
from ottla.connect.status import read_statuses
from ottla.testing import Cluster
from tests.connect.wal_keeping import SETTINGS, TIMEOUT_S, Keeper, Running
from tests.support.postgres_server import PostgresServer

STILL_WAITING_S = 1.5


def test_a_commit_waits_for_the_log(tmp_path: Path) -> None:
    with Cluster(wal=True) as cluster, PostgresServer(settings=SETTINGS) as server:
        keeper = Keeper(cluster, server, tmp_path)
        with keeper.keeping():
            keeper.sql("CREATE TABLE t (n int)")
            cluster.stop()
            committing = threading.Thread(target=keeper.sql, args=("INSERT INTO t VALUES (1)",))
            committing.start()
            committing.join(STILL_WAITING_S)
            assert committing.is_alive(), "it returned, and no broker has it"
            with psycopg.connect(server.url, autocommit=True) as other:
                waits = "SELECT wait_event FROM pg_stat_activity WHERE query LIKE 'INSERT%'"
                assert other.execute(waits).fetchall() == [("SyncRep",)]
                assert other.execute("SELECT flush_lsn < pg_current_wal_lsn() FROM pg_stat_replication").fetchall() == [
                    (True,)
                ]
            cluster.start()
            committing.join(TIMEOUT_S)
            assert not committing.is_alive()
        assert keeper.sql("SELECT n FROM t") == [(1,)]


def test_its_status_can_be_asked_for(tmp_path: Path) -> None:
    with Cluster(wal=True) as cluster, PostgresServer(settings=SETTINGS) as server:
        keeper = Keeper(cluster, server, tmp_path)
        receiver = keeper.receiver()
        running = Running(_both(receiver, cluster.bootstrap_servers))
        try:
            for _ in range(int(TIMEOUT_S)):
                found = asyncio.run(read_statuses(cluster.bootstrap_servers))
                if found and found[0].state == "running":
                    break
                threading.Event().wait(1)
            (status,) = found
            assert (status.name, status.kind, status.state) == ("main", "postgres-wal", "running")
            assert status.facts["timeline"] == 1
            assert "/" in status.facts["position"]
        finally:
            running.stop()
        (status,) = asyncio.run(read_statuses(cluster.bootstrap_servers))
        assert status.state == "stopped"
        running = Running(_both(keeper.receiver(user="nobody"), cluster.bootstrap_servers))
        try:
            for _ in range(int(TIMEOUT_S)):
                (status,) = asyncio.run(read_statuses(cluster.bootstrap_servers))
                if status.state == "waiting":
                    break
                threading.Event().wait(1)
            assert (status.state, "nobody" in (status.error or "")) == ("waiting", True)
        finally:
            running.stop()


async def _both(receiver: Receiver, bootstrap: str) -> None:
    reporting = asyncio.create_task(report_status(bootstrap, "main", receiver, print))
    try:
        await receiver.run()
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
