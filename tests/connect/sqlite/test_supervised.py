"""The connector as a process: its `ottla connect status`, and its restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.connect.sqlite import wait_shipped
from ottla.connect.status import Status, read_statuses
from ottla.testing import Cluster
from tests.connect.connectors import Connector, ottla, wait_until
from tests.connect.sqlite.app import App


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """On a disk: the topic of the statuses is compacted, which is not possible in memory."""
    with Cluster(wal=True) as cluster:
        yield cluster


def status(cluster: Cluster, name: str) -> Status | None:
    found = asyncio.run(read_statuses(cluster.bootstrap_servers))
    return next((each for each in found if each.name == name), None)


def state(cluster: Cluster, name: str) -> str | None:
    found = status(cluster, name)
    return None if found is None else found.state


def test_it_is_shown_and_started_again(app: App, cluster: Cluster, tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    words = ["sqlite", str(database), "--log", "shown", "--wal", cluster.wal_servers]
    with Connector(tmp_path / "log", *words, "--bootstrap", cluster.bootstrap_servers) as connector:
        app.do("INSERT INTO t VALUES (1, 0)")
        wait_until(lambda: "following" in connector.log, "it follows")
        first = wait_shipped(database, timeout_s=60)
        wait_until(lambda: state(cluster, "shown") == "running", "it is shown")
        connector.kill_worker()
        app.do("INSERT INTO t VALUES (2, 0)")
        assert wait_shipped(database, timeout_s=60) == first + 1

        def shown() -> Status:
            found = status(cluster, "shown")
            assert found is not None
            return found

        wait_until(lambda: shown().facts.get("transaction") == first + 1, "the status has the last transaction")
        seen = shown()
        assert (seen.kind, seen.state, seen.restarts, seen.error) == ("sqlite", "running", 1, None)
        assert seen.facts["behind_bytes"] == 0
        assert seen.facts["wal_bytes"] > 0
        assert seen.facts["position"].startswith("frame ")
        assert connector.stop() == 0
        assert shown().state == "stopped"


def test_what_only_a_person_can_put_right_ends_it(cluster: Cluster, tmp_path: Path) -> None:
    words = ["connect", "sqlite", str(tmp_path / "none.db"), "--log", "nothing", "--wal", cluster.wal_servers]
    done = ottla(*words, "--bootstrap", cluster.bootstrap_servers)
    assert done.returncode == 1
    assert "does not exist" in done.stderr
    seen = status(cluster, "nothing")
    assert seen is not None
    assert seen.state == "failed"
    assert "does not exist" in (seen.error or "")


def test_nobody_who_shows_it_is_no_reason_not_to_follow(app: App, tmp_path: Path) -> None:
    with Cluster(wal=True, storage="memory") as brokers:  # they reject the topic of the statuses
        words = ["sqlite", str(tmp_path / "a.db"), "--log", "unseen", "--wal", brokers.wal_servers]
        with Connector(tmp_path / "log", *words, "--bootstrap", brokers.bootstrap_servers) as connector:
            wait_until(lambda: "following" in connector.log, "it follows")
            app.do("INSERT INTO t VALUES (1, 0)")
            assert wait_shipped(tmp_path / "a.db", timeout_s=60) == 1
            wait_until(lambda: "`ottla connect status` does not show it" in connector.log, "it says so")
            assert connector.stop() == 0


def test_several_databases_in_one_file(app: App, cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "connectors.toml"
    file.write_text(
        f"""
        bootstrap = "{cluster.bootstrap_servers}"
        [connector.one]
        kind = "sqlite"
        database = "{tmp_path / "a.db"}"
        log = "one"
        wal = "{cluster.wal_servers}"
        keep = "all"
        [connector.two]
        kind = "sqlite"
        database = "{tmp_path / "a.db"}"
        log = "two"
        wal = "{cluster.wal_servers}"
        snapshot_every = "soon"
        """,
        encoding="utf-8",
    )
    with Connector(tmp_path / "log", "run", str(file)) as connector:
        wait_until(lambda: "following" in connector.log, "one follows")
        wait_until(lambda: state(cluster, "two") == "failed", "the other cannot")
        said = '"soon" is not a duration; snapshot_every takes 90s'
        wait_until(lambda: said in connector.log, "the supervisor says why")  # after the worker has reported it
        assert connector.stop() == 1
