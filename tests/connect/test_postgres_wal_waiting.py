"""A connector that commits wait for does not give up: it waits until a temporary problem is resolved."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from ottla.connect.postgres_wal.failures import InvalidSettingsError
from ottla.connect.postgres_wal.receiver import Receiver, ReceiverSettings
from ottla.testing import Cluster
from tests.connect.connectors import Connector, ottla, statuses, wait_until
from tests.connect.wal_keeping import SETTINGS, TIMEOUT_S, Keeper, Running, ask
from tests.support.postgres_server import PostgresServer


def until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def hold_recovery(target: PostgresServer, hold: Path, first_segment: str) -> None:
    """Delays every segment but the first while the file `hold` exists: the server stays in recovery."""
    (line,) = [
        line
        for line in Path(target.data_dir, "postgresql.auto.conf").read_text().splitlines()
        if line.startswith("restore_command")
    ]
    command = line.split("= '", 1)[1][:-1].replace("''", "'").replace("\\\\", "\\")
    wait = f"while [ -e {hold} ]; do sleep 0.1; done"
    target.settings["restore_command"] = f"case %f in {first_segment}|*.history) ;; *) {wait};; esac; {command}"


def refusal_of(server: PostgresServer) -> str:
    try:
        psycopg.connect(server.url).close()
    except psycopg.OperationalError as failure:
        return str(failure)
    return ""


def test_a_connector_started_during_the_restore_resumes(tmp_path: Path) -> None:
    """The recovering server rejects connections (hot standby is off); once it is open, commits wait for the log."""
    hold = tmp_path / "hold"
    with Cluster(wal=True) as cluster, PostgresServer(settings=SETTINGS) as server:
        keeper = Keeper(cluster, server, tmp_path)
        with keeper.keeping():
            keeper.sql("CREATE TABLE t (n int)")
            backup = keeper.backup()
            for number in range(3):
                keeper.sql(f"INSERT INTO t VALUES ({number})", "SELECT pg_switch_wal()")
        first = keeper.sql(f"SELECT pg_walfile_name('0/{backup.start:X}')")[0][0]
        server.kill()
        restored = PostgresServer(settings={**SETTINGS, "hot_standby": "off"})
        try:
            keeper.lay_down(restored)
            hold.touch()
            hold_recovery(restored, hold, first)
            restored.settings["synchronous_standby_names"] = "ottla"
            restored.spawn()
            until(lambda: "not accepting connections" in refusal_of(restored), "the server recovers")
            file = tmp_path / "connectors.toml"
            file.write_text(
                f'bootstrap = "{cluster.bootstrap_servers}"\n[connector.main]\nkind = "postgres-wal"\n'
                f'url = "{restored.url}"\nwal = "{cluster.wal_servers}"\nlog = "{keeper.place.name}"\n'
            )
            with Connector(tmp_path / "log", "run", str(file)) as connector:

                def status() -> tuple[str, str]:
                    known = statuses(cluster.bootstrap_servers).get("main", {})
                    return str(known.get("state")), str(known.get("error"))

                wait_until(lambda: status()[0] not in ("None", "starting"), f"it says what it does; {connector.log}")
                state, error = status()
                assert state == "waiting", connector.log
                assert "Hot standby mode is disabled" in error
                time.sleep(3)  # several more attempts
                assert connector.log.count("not accepting connections") == 1, "it says so once"
                hold.unlink()
                restored.wait_until_recovered()
                wait_until(lambda: status()[0] == "running", f"it streams; {connector.log}")
                ask(restored, "INSERT INTO t VALUES (3)")  # returns when the log has it
                assert ask(restored, "SELECT n FROM t ORDER BY n") == [(0,), (1,), (2,), (3,)]
                assert ask(restored, "SELECT sync_state FROM pg_stat_replication") == [("sync",)]
                assert statuses(cluster.bootstrap_servers)["main"]["restarts"] == 0
                restored.kill()
        finally:
            hold.unlink(missing_ok=True)
            restored.close()


@pytest.fixture
def keeper(tmp_path: Path) -> object:
    with Cluster(wal=True) as cluster, PostgresServer(settings=SETTINGS) as server:
        yield Keeper(cluster, server, tmp_path)


def test_it_waits_for_its_role_and_for_a_server_that_is_away(keeper: Keeper) -> None:
    receiver = keeper.receiver(user="keeper")
    running = Running(receiver.run())
    try:
        until(lambda: "CREATE ROLE" in (receiver.last_failure or ""), "it says what to type")
        assert receiver.state == "waiting"
        until(lambda: receiver.reconnects > 4, "it tries again")
        assert sum("CREATE ROLE" in sentence for sentence in keeper.news) == 1
        keeper.sql("CREATE ROLE keeper LOGIN REPLICATION")
        until(lambda: receiver.state == "running", f"it streams: {keeper.news}")
        assert receiver.last_failure is None
        keeper.server.stop()
        until(lambda: "cannot connect to PostgreSQL" in (receiver.last_failure or ""), f"it waits: {keeper.news}")
        keeper.server.start()
        until(lambda: receiver.state == "running", f"it streams again: {keeper.news}")
        running.check()
    finally:
        running.stop()


def test_a_server_and_brokers_that_are_not_there_yet(tmp_path: Path) -> None:
    """At the first start too, so that machines can boot in any order."""
    cluster, server = Cluster(wal=True), PostgresServer(settings=SETTINGS)
    with cluster, server:
        keeper = Keeper(cluster, server, tmp_path)
        server.stop()
        cluster.stop()
        receiver = keeper.receiver()
        running = Running(receiver.run())
        try:
            until(lambda: "cannot connect to PostgreSQL" in (receiver.last_failure or ""), "it waits for the server")
            server.start()
            cluster.start()
            until(lambda: receiver.state == "running", f"it streams: {keeper.news}")
        finally:
            running.stop()


async def test_options_that_cannot_work_end_it_at_once() -> None:
    def no_log(fence: bool) -> object:
        raise AssertionError("no log is opened")

    for settings in (ReceiverSettings("postgresql//wrong"), ReceiverSettings("host=/nowhere", slot="Not-A-Slot")):
        with pytest.raises(InvalidSettingsError):
            await Receiver(settings, no_log, print).run()  # type: ignore[arg-type] # never called
    said = ottla("connect", "postgres-wal", "postgresql://somebody@/", "--durability", "dsk")
    assert said.returncode == 2, "a usage error"
    assert "'dsk' is not one of 'disk', 'cache'" in said.stderr
