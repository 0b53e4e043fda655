"""Timelines, gaps, and servers that do not belong to a log: a real PostgreSQL, restored, promoted and mixed up."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.connect.postgres_wal.entries import Entry, Kind
from ottla.connect.postgres_wal.log_search import entries
from ottla.testing import Cluster
from ottla.wal import Log
from tests.connect.wal_keeping import SETTINGS, Keeper, ask
from tests.support.postgres_server import PostgresServer

COUNT = "SELECT count(*) FROM t"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(wal=True) as running:
        yield running


@pytest.fixture
def keeper(cluster: Cluster, tmp_path: Path) -> Iterator[Keeper]:
    settings = {**SETTINGS, "max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}
    with PostgresServer(settings=settings) as server:
        keeper = Keeper(cluster, server, tmp_path, f"log-{os.path.basename(server.home)}")
        keeper.sql("CREATE TABLE t (n int)")
        yield keeper


def all_entries(keeper: Keeper) -> list[Entry]:
    async def read(log: Log) -> list[Entry]:
        tail = await log.tail()
        return [placed.entry async for placed in entries(log, tail.start_offset)]

    return keeper.with_log(read)


def promote(server: PostgresServer) -> None:
    """A recovery without anything to fetch ends where the server's own WAL ends, on a new timeline."""
    server.stop()
    Path(server.data_dir, "recovery.signal").touch()
    server.settings |= {"restore_command": "false", "hot_standby": "off"}
    server.spawn()
    server.wait_until_recovered()
    del server.settings["restore_command"]


def test_a_timeline_that_ended_while_nobody_was_there(keeper: Keeper) -> None:
    """The rest of the old timeline comes first, then the new one; both are restored from the earlier backup."""
    with keeper.keeping():
        keeper.sql("INSERT INTO t VALUES (1)")
        keeper.backup()
    keeper.sql("INSERT INTO t VALUES (2)")
    promote(keeper.server)
    keeper.sql("INSERT INTO t VALUES (3)")
    keeper.news.clear()
    with keeper.keeping():
        keeper.sql("INSERT INTO t VALUES (4)")
    assert not [each for each in keeper.news if "retrying" in each], "one connection for both timelines"
    found = all_entries(keeper)
    assert sorted({each.timeline for each in found}) == [1, 2]
    (history,) = [each for each in found if each.kind is Kind.HISTORY]
    assert history.start == max(each.end for each in found if each.timeline == 1)
    assert history.start == min(each.start for each in found if each.timeline == 2)
    wal = [each for each in found if each.kind is Kind.WAL]
    assert all(one.end == other.start for one, other in itertools.pairwise(wal)), "no gap and nothing twice"
    assert keeper.check() == []
    with keeper.restored() as restored:
        assert ask(restored, "SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,), (4,)]


def test_a_server_that_was_replaced_is_refused(keeper: Keeper) -> None:
    """The restored server continues in the log; the old one, restarted, is rejected, and so is an unrelated one."""
    with keeper.keeping():
        keeper.sql("INSERT INTO t VALUES (1)")
        keeper.backup()
        keeper.sql("INSERT INTO t VALUES (2)")
    old = keeper.server
    with keeper.restored() as restored:
        keeper.server = restored
        with keeper.keeping():
            keeper.sql("INSERT INTO t VALUES (3)")
        keeper.server = old
        keeper.waits_for(r"moved on to timeline 2, but this server is still on timeline 1")
        with keeper.restored() as again:
            assert ask(again, "SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]
    with PostgresServer(settings=SETTINGS) as stranger:
        keeper.server = stranger
        keeper.waits_for("this log contains the WAL of another database")
    keeper.server = old


def test_a_restored_server_keeps_its_wal_until_its_connector_comes(keeper: Keeper) -> None:
    """It has no slot yet. Checks of the new server write WAL too, and every checkpoint removes old files."""
    with keeper.keeping():
        keeper.sql("INSERT INTO t VALUES (1)")
        keeper.backup()
    old = keeper.server
    with keeper.restored() as restored:
        keeper.server = restored
        for number in range(2, 6):
            keeper.sql(
                "SET synchronous_commit = local",
                f"INSERT INTO t VALUES ({number})",
                "SELECT pg_switch_wal()",
                "CHECKPOINT",
            )
        with keeper.keeping():
            keeper.sql("INSERT INTO t VALUES (6)")
        keeper.server = old
        assert keeper.check() == []
        with keeper.restored() as again:
            assert ask(again, "SELECT n FROM t ORDER BY n") == [(number,) for number in range(1, 7)]


def test_wal_that_the_bound_gave_up_is_a_gap(keeper: Keeper) -> None:
    with keeper.keeping():
        keeper.sql("INSERT INTO t VALUES (1)")
        keeper.backup()
    for _ in range(6):  # more than max_slot_wal_keep_size, while no connector runs
        keeper.sql("SELECT pg_logical_emit_message(false, 'x', repeat('y', 1000))", "SELECT pg_switch_wal()")
    keeper.sql("CHECKPOINT")
    assert keeper.sql("SELECT wal_status FROM pg_replication_slots") == [("lost",)]
    keeper.waits_for(r"removed WAL that the log does not have.*--accept-gap")
    with keeper.keeping(accept_gap=True):
        keeper.sql("INSERT INTO t VALUES (2)")
        assert [each.kind for each in all_entries(keeper)].count(Kind.GAP) == 1
        assert any("the log has a gap" in sentence for sentence in keeper.news)
        findings = keeper.check()
        assert len(findings) == 1
        assert "the log has no WAL between" in findings[0]
        _refuses_to_recover(keeper)
        keeper.backup()
        keeper.sql("INSERT INTO t VALUES (3)")
    with keeper.restored() as restored:
        assert ask(restored, COUNT) == [(3,)]


def _refuses_to_recover(keeper: Keeper) -> None:
    """Recovers from before the gap to after it: the server does not open with a hole in its history."""
    target = PostgresServer(settings={**SETTINGS, "hot_standby": "off"})
    try:
        keeper.lay_down(target)
        target.spawn()
        assert target.wait() != 0
        assert "the log has no WAL between" in target.log()
    finally:
        target.close()


def test_one_connector_at_a_time(keeper: Keeper) -> None:
    with keeper.keeping():
        keeper.waits_for("is in use")
        keeper.sql("INSERT INTO t VALUES (1)")  # the first one has lost neither the slot nor the log
