"""`wal_keep_size` of a restored server is raised until its connector streams, then reset."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.connect.postgres_wal.restore import RestoreRequest
from ottla.testing import Cluster
from tests.connect.wal_keeping import SETTINGS, TIMEOUT_S, Keeper, Running, ask
from tests.support.postgres_server import PostgresServer


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    with Cluster(wal=True) as cluster, PostgresServer(settings=SETTINGS) as server:
        keeper = Keeper(cluster, server, tmp_path)
        keeper.sql("CREATE TABLE t (n int)")
        yield keeper


def test_the_connector_sets_wal_keep_size_back(keeper: Keeper) -> None:
    """It is raised only until the slot of the restored server holds its WAL, then reset automatically."""
    before = keeper.sql("SHOW wal_keep_size")
    with keeper.keeping():
        keeper.sql("INSERT INTO t VALUES (1)")
        keeper.backup()
        keeper.sql("ALTER SYSTEM SET wal_keep_size = '48MB'", "SELECT pg_reload_conf()")
        keeper.backup()
        keeper.sql("INSERT INTO t VALUES (2)")
    assert before == [("0",)]
    oldest, newest = keeper.store.backups()
    old = keeper.server
    for backup, expected in ((oldest.name, "0"), (newest.name, "48MB")):
        with keeper.restored(RestoreRequest(backup=backup)) as restored:
            assert ask(restored, "SHOW wal_keep_size") == [("1GB",)]
            keeper.server = restored
            try:
                with keeper.keeping():
                    _until_set_back(restored, expected)
                    lines = Path(restored.data_dir, "postgresql.auto.conf").read_text()
                    assert "wal_keep_size_before" not in lines
                    assert ("wal_keep_size" in lines) == (expected != "0")
                    assert ask(restored, "SELECT count(*) FROM pg_replication_slots WHERE restart_lsn IS NOT NULL") == [
                        (1,)
                    ]
            finally:
                keeper.server = old


def test_a_connector_without_the_right_says_what_to_type(keeper: Keeper) -> None:
    with keeper.keeping():
        keeper.sql("CREATE ROLE keeper LOGIN REPLICATION")
        keeper.backup()
    old = keeper.server
    with keeper.restored() as restored:
        keeper.server = restored
        running = Running(keeper.receiver(user="keeper").run())
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not (said := [each for each in keeper.news if "could not reset it" in each]):
                running.check()
                assert time.monotonic() < deadline, keeper.news
                time.sleep(0.05)
            assert "ALTER SYSTEM RESET wal_keep_size" in said[0]
            ask(
                restored,
                'GRANT ALTER SYSTEM ON PARAMETER wal_keep_size TO "keeper"',
                'GRANT EXECUTE ON FUNCTION pg_reload_conf() TO "keeper"',
            )
        finally:
            running.stop()
        running = Running(keeper.receiver(user="keeper").run())
        try:
            _until_set_back(restored, "0")
        finally:
            running.stop()
            keeper.server = old


def _until_set_back(server: PostgresServer, expected: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while ask(server, "SHOW wal_keep_size") != [(expected,)]:
        assert time.monotonic() < deadline, ask(server, "SHOW wal_keep_size")
        time.sleep(0.05)
