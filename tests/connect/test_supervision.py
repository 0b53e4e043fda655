"""Connectors as processes: restarts, orderly stops, and `ottla connect status`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ottla.connect.configuration import load_file
from ottla.connect.failures import NeedsHelpError
from ottla.connect.supervisor import FIRST_PAUSE_S, GOOD_AFTER_S, LONGEST_PAUSE_S, pause_after
from ottla.net.backoff import Backoff
from ottla.testing import Cluster
from tests.connect.connectors import Connector, ottla, statuses, wait_until
from tests.connect.in_process import execute, rows
from tests.support.postgres_server import PostgresServer

NewDatabase = Callable[[], str]


def test_pauses_grow_and_begin_again() -> None:
    backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    assert [pause_after(1, backoff) for _ in range(2)] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S]
    assert pause_after(GOOD_AFTER_S, backoff) == FIRST_PAUSE_S


def test_connectors_of_a_file(broker: Cluster, new_database: NewDatabase, prefix: str, tmp_path: Path) -> None:
    """A change is copied from one database to another; a worker is killed; another connector needs an operator."""
    source, target = new_database(), new_database()
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)")
    file = tmp_path / "connectors.toml"
    file.write_text(
        f"""
        bootstrap = "{broker.bootstrap_servers}"
        [connector.{prefix}]
        kind = "postgres-cdc"
        url = "{source}"
        tables = ["t"]
        [connector.{prefix}-replica]
        kind = "postgres-sink"
        url = "{target}"
        prefix = "{prefix}"
        apply_schema_changes = true
        [connector.{prefix}-wrong]
        kind = "postgres-cdc"
        url = "{source}"
        tables = ["nowhere"]
        """,
        encoding="utf-8",
    )
    with Connector(tmp_path / "log", "run", str(file)) as connector:
        wait_until(lambda: "running" in connector.log, "something runs")
        execute(source, "INSERT INTO t VALUES (1)")
        wait_until(lambda: _has(target, 1), f"the row is there; {connector.log}")
        known = statuses(broker.bootstrap_servers)
        assert known[f"{prefix}-wrong"]["state"] == "failed"
        assert 'there is no table "public.nowhere"' in known[f"{prefix}-wrong"]["error"]
        wait_until(lambda: "nowhere" in connector.log, "the supervisor says why")  # after the worker has reported it
        assert known[prefix]["kind"] == "postgres-cdc"
        assert known[prefix]["pid"] in [worker.pid for worker in connector.workers()]
        connector.kill_worker()
        execute(source, "INSERT INTO t VALUES (2)")
        wait_until(lambda: _has(target, 2), f"the next row is there; {connector.log}")
        assert statuses(broker.bootstrap_servers)[prefix]["restarts"] == 1
        connector.stop()
    after = statuses(broker.bootstrap_servers)
    assert (after[prefix]["state"], after[f"{prefix}-replica"]["state"]) == ("stopped", "stopped")
    shown = ottla("connect", "status", f"{prefix}-wrong", "-b", broker.bootstrap_servers)
    assert "failed" in shown.stdout
    assert f"{prefix}-replica" not in shown.stdout


def test_the_wal_of_a_server(postgres: PostgresServer, new_database: NewDatabase, prefix: str, tmp_path: Path) -> None:
    """Shipped by a supervised worker that is killed; another one waits for a limit of its slot."""
    url, slot = new_database(), f"{prefix}_slot"
    file = tmp_path / "connectors.toml"
    with Cluster(wal=True) as cluster:
        file.write_text(
            f"""
            bootstrap = "{cluster.bootstrap_servers}"
            [connector.{prefix}]
            kind = "postgres-wal"
            url = "{url}"
            wal = "{cluster.wal_servers}"
            log = "{prefix}-wal"
            slot = "{slot}"
            standby_name = "{prefix}"
            unbounded_slot = true
            [connector.{prefix}-unbounded]
            kind = "postgres-wal"
            url = "{url}"
            wal = "{cluster.wal_servers}"
            log = "{prefix}-other"
            """,
            encoding="utf-8",
        )

        def is_kept() -> bool:
            """Returns whether everything written so far is in the log and confirmed to the server."""
            [(lsn,)] = rows(url, "SELECT pg_current_wal_flush_lsn()")
            heard = f"SELECT flush_lsn >= '{lsn}' FROM pg_stat_replication WHERE application_name = '{prefix}'"
            return rows(url, heard) == [(True,)]

        def state_of(name: str) -> str:
            return str(statuses(cluster.bootstrap_servers).get(name, {}).get("state"))

        try:
            with Connector(tmp_path / "log", "run", str(file)) as connector:
                wait_until(lambda: f"{prefix}: running" in connector.log, f"it runs; {connector.log}")
                execute(url, "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
                wait_until(is_kept, f"the WAL is kept; {connector.log}")
                wait_until(lambda: state_of(prefix) == "running", f"the status says so; {connector.log}")
                wait_until(lambda: state_of(f"{prefix}-unbounded") == "waiting", f"the other waits; {connector.log}")
                known = statuses(cluster.bootstrap_servers)
                assert known[prefix]["kind"] == "postgres-wal"
                assert "max_slot_wal_keep_size" in known[f"{prefix}-unbounded"]["error"]
                connector.kill_worker()
                execute(url, "INSERT INTO t VALUES (2)")
                wait_until(is_kept, f"the next worker goes on; {connector.log}")
                connector.stop()
            assert statuses(cluster.bootstrap_servers)[prefix]["restarts"] == 1
            assert statuses(cluster.bootstrap_servers)[prefix]["state"] == "stopped"
        finally:
            wait_until(lambda: _is_dropped(postgres.url, slot), "the server has let go of the slot")


def test_a_source_that_has_run_waits_for_its_rights(
    broker: Cluster, new_database: NewDatabase, postgres: PostgresServer, prefix: str, tmp_path: Path
) -> None:
    """A role without replication rights ends a source that never ran, but not one that has."""
    url = new_database()
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)", f"CREATE ROLE {prefix} LOGIN SUPERUSER")
    words = ["--name", prefix, "--url", url.replace("ottla@", f"{prefix}@"), "--table", "t"]
    words += ["-b", broker.bootstrap_servers]
    with Connector(tmp_path / "log", "postgres-cdc", *words) as connector:
        wait_until(lambda: f"{prefix}: running" in connector.log, f"it runs; {connector.log}")
        execute(url, f"ALTER ROLE {prefix} NOLOGIN NOSUPERUSER")
        connector.kill_worker()
        wait_until(lambda: "not permitted to log in" in connector.log, f"it is not let in; {connector.log}")
        execute(url, f"ALTER ROLE {prefix} LOGIN")
        wait_until(lambda: "has no replication right" in connector.log, f"it is let in; {connector.log}")
        wait_until(lambda: connector.log.count("has no replication right") > 1, f"it tries again; {connector.log}")
        execute(url, f"ALTER ROLE {prefix} SUPERUSER")
        wait_until(lambda: connector.log.count(f"{prefix}: running") > 1, f"it runs again; {connector.log}")
        assert connector.stop() == 0


def _is_dropped(url: str, slot: str) -> bool:
    found = f"FROM pg_replication_slots WHERE slot_name = '{slot}'"
    execute(url, f"SELECT pg_drop_replication_slot(slot_name) {found} AND NOT active")
    return rows(url, f"SELECT 1 {found}") == []


def _has(url: str, number: int) -> bool:
    if rows(url, "SELECT to_regclass('public.t')") == [(None,)]:
        return False
    return rows(url, f"SELECT 1 FROM t WHERE id = {number}") == [(1,)]


def test_workers_end_with_their_supervisor(
    broker: Cluster, new_database: NewDatabase, prefix: str, tmp_path: Path
) -> None:
    url = new_database()
    execute(url, "CREATE TABLE t (id int PRIMARY KEY)")
    command = ["postgres-cdc", "--name", prefix, "--url", url, "--table", "t", "-b", broker.bootstrap_servers]
    with Connector(tmp_path / "log", *command) as connector:
        wait_until(lambda: f"{prefix}: running" in connector.log, "it runs")
        [worker] = connector.workers()
        connector.kill()
        wait_until(lambda: not psutil.pid_exists(worker.pid), "the worker has ended too")


def test_a_connector_that_cannot_run_ends_with_words_and_a_code(
    broker: Cluster, new_database: NewDatabase, prefix: str
) -> None:
    said = ottla(
        *["connect", "postgres-cdc", "--name", prefix, "--url", new_database(), "--table", "t"],
        *["-b", broker.bootstrap_servers],
    )
    assert said.returncode == 1
    assert 'there is no table "public.t"' in said.stderr
    assert "Traceback" not in said.stderr


def test_files_that_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.toml"

    def failure(text: str) -> str:
        file.write_text(text, encoding="utf-8")
        with pytest.raises(NeedsHelpError) as said:
            load_file(file)
        return str(said.value)

    assert "is not valid TOML" in failure("[")
    assert "has no connector" in failure('bootstrap = "x"')
    assert 'unknown setting "connectors"' in failure("[connectors.a]\nkind = 1")
    assert "has no kind; choose one of postgres-cdc, postgres-sink, file-sink" in failure("[connector.a]")
    assert 'no connector "mysql"' in failure('[connector.a]\nkind = "mysql"')
    assert 'needs the setting "tables"' in failure('[connector.a]\nkind = "postgres-cdc"\nurl = "x"')
    assert "export SHOP=..." in failure('[connector.a]\nkind = "postgres-cdc"\nurl_variable = "SHOP"\ntables = ["t"]')
    assert "not a valid connector name" in failure(
        '[connector."a b"]\nkind = "postgres-cdc"\nurl = "x"\ntables = ["t"]'
    )
    monkeypatch.setenv("SHOP", "postgresql://db/shop")
    file.write_text('[connector.a]\nkind = "postgres-cdc"\nurl_variable = "SHOP"\ntables = ["t"]', encoding="utf-8")
    [config] = load_file(file, "host:1")
    assert (config.settings["url"], config.bootstrap) == ("postgresql://db/shop", "host:1")
    with pytest.raises(NeedsHelpError, match="No such file"):
        load_file(tmp_path / "gone.toml")


def test_too_few_brokers_for_the_status_are_no_reason_to_end(tmp_path: Path) -> None:
    """Its topic has a replica on each of three brokers, and one is down when the connector starts."""
    with Cluster(brokers=3) as brokers:
        brokers.create_topic("orders")
        brokers.kill(3)
        words = [
            "file-sink",
            "--name",
            "files",
            "--topic",
            "orders",
            "--into",
            str(tmp_path / "files"),
            "--every",
            "0.5",
        ]
        with Connector(tmp_path / "log", *words, "-b", brokers.bootstrap_servers) as connector:
            wait_until(lambda: "files: running" in connector.log, f"it runs; {connector.log}")
            brokers.start(3)
            wait_until(lambda: "files" in statuses(brokers.bootstrap_servers), "it is shown")
            assert connector.stop() == 0
