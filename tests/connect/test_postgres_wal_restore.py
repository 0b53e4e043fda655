"""Restores of a real PostgreSQL from a base backup and the log to any transaction, LSN or time, and never to less."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ottla.connect.postgres_wal.backup import keep_newest
from ottla.connect.postgres_wal.backup_check import check_backups
from ottla.connect.postgres_wal.backup_store import BackupStore, DamagedBackupError
from ottla.connect.postgres_wal.failures import RefusedError
from ottla.connect.postgres_wal.restore import RestoreRequest
from ottla.connect.postgres_wal.targets import AtTime, AtXid, parse_target
from ottla.testing import Cluster
from tests.connect.wal_keeping import SETTINGS, Keeper, ask
from tests.support.postgres_server import PostgresServer, unprivileged

ROWS = "SELECT id, n FROM accounts ORDER BY id"


@dataclass(frozen=True, slots=True)
class Moment:
    """A transaction, and the rows right after it."""

    xid: int
    lsn: str
    time: datetime.datetime
    rows: list[tuple[Any, ...]]


@dataclass(slots=True)
class Story:
    keeper: Keeper
    backups: list[str]
    moments: list[Moment]
    directory: Path


def moment(keeper: Keeper, statement: str) -> Moment:
    with psycopg.connect(keeper.server.url) as connection:
        connection.execute(statement)
        xid = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
        connection.commit()
        seen = connection.execute("SELECT pg_current_wal_lsn()::text, clock_timestamp()").fetchone()
        rows = connection.execute(ROWS).fetchall()
    assert xid is not None
    assert seen is not None
    return Moment(int(xid[0]), seen[0], seen[1], rows)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Three changes, a backup after the first and one after the third, and a DELETE without its WHERE."""
    directory = tmp_path_factory.mktemp("keeping")
    space = directory / "space"
    space.mkdir()
    with Cluster(wal=True) as cluster, PostgresServer(settings=SETTINGS, initdb=["--data-checksums"]) as server:
        unprivileged().owns(os.fspath(space))
        # For restored servers that start without the options of this one: the backups contain this file.
        sockets = directory / "sockets"
        sockets.mkdir()
        unprivileged().owns(os.fspath(sockets))
        with Path(server.data_dir, "postgresql.conf").open("a") as conf:
            conf.write(f"\nlisten_addresses = ''\nunix_socket_directories = '{sockets}'\nfsync = off\n")
        keeper = Keeper(cluster, server, directory)
        with keeper.keeping():
            keeper.sql(
                f"CREATE TABLESPACE elsewhere LOCATION '{space}'",
                "CREATE TABLE accounts (id int PRIMARY KEY, n int) TABLESPACE elsewhere",
                "INSERT INTO accounts SELECT id, 0 FROM generate_series(1, 1000) id",
            )
            backups = [keeper.backup().name]
            moments = [moment(keeper, "UPDATE accounts SET n = n + 1 WHERE id <= 10")]
            moments.append(moment(keeper, "INSERT INTO accounts VALUES (2000, 7), (2001, 8)"))
            backups.append(keeper.backup().name)
            moments.append(moment(keeper, "UPDATE accounts SET n = id WHERE id > 900"))
            moments.append(moment(keeper, "DELETE FROM accounts"))
            moments.append(moment(keeper, "INSERT INTO accounts VALUES (1, 1)"))
        yield Story(keeper, backups, moments, directory)


def test_everything_that_was_committed(story: Story) -> None:
    with story.keeper.restored() as restored:
        assert ask(restored, ROWS) == story.moments[-1].rows
        assert ask(restored, "SELECT timeline_id FROM pg_control_checkpoint()") == [(2,)]
        restored.stop()
        assert "Bad checksums:  0" in restored.run(str(restored.binaries / "pg_checksums"), "-D", restored.data_dir)


@pytest.mark.parametrize("number", [0, 2])
def test_a_chosen_transaction(story: Story, number: int) -> None:
    """The first one is before the second backup, so the first backup is used."""
    chosen = story.moments[number]
    with story.keeper.restored(RestoreRequest(target=AtXid(chosen.xid))) as restored:
        assert ask(restored, ROWS) == chosen.rows


def test_just_before_the_bad_delete(story: Story) -> None:
    before, delete = story.moments[2:4]
    assert delete.rows == []
    with story.keeper.restored(RestoreRequest(target=AtXid(delete.xid), inclusive=False)) as restored:
        assert ask(restored, ROWS) == before.rows


def test_a_chosen_lsn_and_time(story: Story) -> None:
    with story.keeper.restored(RestoreRequest(target=parse_target(story.moments[1].lsn))) as restored:
        assert ask(restored, ROWS) == story.moments[1].rows
    before, delete = story.moments[2:4]
    between = before.time + (delete.time - before.time) / 100
    with story.keeper.restored(RestoreRequest(target=parse_target(between.isoformat()))) as restored:
        assert ask(restored, ROWS) == before.rows


def test_what_cannot_be_reached_is_refused(story: Story) -> None:
    target = PostgresServer()
    try:
        with pytest.raises(RefusedError, match="the oldest backup was taken after"):
            story.keeper.lay_down(target, RestoreRequest(target=AtTime(0)))
        with pytest.raises(RefusedError, match="the log has no WAL of timeline 7"):
            story.keeper.lay_down(target, RestoreRequest(timeline=7))  # type: ignore[arg-type] # a plain number
        with pytest.raises(RefusedError, match=r"there is no backup 'other' in .*ottla backup list"):
            story.keeper.lay_down(target, RestoreRequest(backup="other"))
        Path(target.data_dir).mkdir()
        Path(target.data_dir, "something").touch()
        with pytest.raises(RefusedError, match="is not empty"):
            story.keeper.lay_down(target)
        with pytest.raises(ValueError, match="neither a time"):
            parse_target("yesterday")
    finally:
        target.close()


def test_a_target_that_the_log_does_not_reach_stops_the_server(story: Story) -> None:
    target = PostgresServer(settings={"hot_standby": "off"})
    try:
        story.keeper.lay_down(target, RestoreRequest(target=AtXid(story.moments[-1].xid + 1000)))
        target.spawn()
        assert target.wait() != 0
        assert "recovery ended before configured recovery target was reached" in target.log()
    finally:
        target.close()


def test_brokers_that_do_not_answer_are_not_the_end_of_the_wal(story: Story) -> None:
    """The server stops instead of opening with less than the log has; with the brokers back it has everything."""
    target = PostgresServer(settings={**SETTINGS, "hot_standby": "off", "synchronous_standby_names": ""})
    settings = Path(target.data_dir, "postgresql.auto.conf")
    try:
        story.keeper.lay_down(target)
        right = settings.read_text()
        settings.write_text(right.replace(story.keeper.place.servers, "127.0.0.1:1"))
        target.settings["restore_command"] = _impatient(right, story.keeper.place.servers)
        target.spawn()
        assert target.wait() != 0
        assert "child process exited with exit code 255" in target.log()
        del target.settings["restore_command"]
        settings.write_text(right)
        target.spawn()
        target.wait_until_recovered()
        assert ask(target, ROWS) == story.moments[-1].rows
    finally:
        target.close()


def _impatient(settings: str, servers: str) -> str:
    """The command as written, but with a port where nobody listens, and killed after a second."""
    (line,) = [line for line in settings.splitlines() if line.startswith("restore_command")]
    command = line.split("= '", 1)[1][:-1].replace("''", "'").replace(servers, "127.0.0.1:1")
    return f"timeout 2 {command}"


def test_the_command_says_how_to_start_it_and_starts_it(story: Story) -> None:
    target = PostgresServer()
    base = [sys.executable, "-m", "ottla", "restore", "postgres", "--to", target.data_dir]
    base += ["--store", story.keeper.store.place, "--wal", story.keeper.place.servers, "--log", story.keeper.place.name]
    try:
        command = [*unprivileged().prefix, *base, "--at", str(story.moments[1].xid)]
        environment = {**os.environ, "PGOPTIONS": ""}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        assert f"-D {target.data_dir}" in done.stdout
        assert story.backups[0] in done.stdout
        with Path(target.data_dir, "postgresql.conf").open("a") as conf:
            conf.write(f"\nlisten_addresses = ''\nunix_socket_directories = '{target.home}'\nfsync = off\n")
        started = [line for line in done.stdout.splitlines() if "pg_ctl" in line]
        subprocess.run([*unprivileged().prefix, "sh", "-c", started[0]], check=True, stdout=subprocess.DEVNULL)
        try:
            target.wait_for_status()
            assert ask(target, ROWS) == story.moments[1].rows
        finally:
            target.run(str(target.binaries / "pg_ctl"), "-D", target.data_dir, "-m", "immediate", "stop")
    finally:
        target.close()


def test_the_command_starts_it_and_waits(story: Story) -> None:
    """`--start` as another user than root: returns when the server has recovered, or reports why not."""
    target, sockets = PostgresServer(), story.directory / "sockets"
    base = [*unprivileged().prefix, sys.executable, "-m", "ottla", "restore", "postgres", "--start", "--port", "5433"]
    base += ["--store", story.keeper.store.place, "--wal", story.keeper.place.servers, "--log", story.keeper.place.name]

    def restore(to: str, xid: int) -> subprocess.CompletedProcess[str]:
        command, user = [*base, "--to", to, "--at", str(xid)], unprivileged().user
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, user=user)

    try:
        right = restore(target.data_dir, story.moments[2].xid)
        assert right.returncode == 0, right.stderr
        assert f"the server is running, recovered up to {story.moments[2].xid}" in right.stdout
        try:
            with psycopg.connect(f"postgresql://ottla@/postgres?host={sockets}&port=5433") as connection:
                assert connection.execute(ROWS).fetchall() == story.moments[2].rows
        finally:
            target.run(str(target.binaries / "pg_ctl"), "-D", target.data_dir, "-m", "immediate", "stop")
        wrong = restore(f"{target.data_dir}-2", story.moments[-1].xid + 1000)
        assert wrong.returncode == 1
        assert "recovery ended before configured recovery target was reached" in wrong.stderr
    finally:
        target.close()


def test_a_damaged_backup_is_noticed(story: Story, tmp_path: Path) -> None:
    for path in Path(story.keeper.store.place).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damaged = next(path for path in tmp_path.iterdir() if path.name.endswith("base.tar.lz4"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    store = BackupStore(os.fspath(tmp_path))
    findings = story.keeper.with_log(lambda log: check_backups(log, store, lambda sentence: None))
    assert len(findings) == 1
    assert "base.tar" in findings[0]
    backup = next(each for each in store.backups() if damaged.name.startswith(each.name))
    base = next(each for each in backup.files if each.name == "base.tar")
    with pytest.raises(DamagedBackupError):
        list(store.read_file(backup, base))


def test_trimming_keeps_what_the_oldest_backup_needs(story: Story) -> None:
    """Last in this module: the first backup is deleted, and with it the log before the second one."""
    keeper = story.keeper
    assert keeper.with_log(lambda log: check_backups(log, keeper.store, lambda sentence: None)) == []
    kept = keeper.with_log(lambda log: keep_newest(log, keeper.store, 1))
    assert [each.name for each in kept.removed] == story.backups[:1]
    assert kept.trimmed_before is not None
    assert kept.trimmed_before > 0
    assert keeper.with_log(lambda log: check_backups(log, keeper.store, lambda sentence: None)) == []
    with keeper.restored() as restored:
        assert ask(restored, ROWS) == story.moments[-1].rows
    target = PostgresServer()
    try:
        with pytest.raises(RefusedError, match="the oldest backup was taken after"):
            keeper.lay_down(target, RestoreRequest(target=AtXid(story.moments[0].xid)))
    finally:
        target.close()
