"""A log whose head was deleted by retention is restored from its archive and the rest of the log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ottla.connect.postgres_wal.backup_store import BackupStore
from ottla.connect.postgres_wal.failures import RefusedError
from ottla.connect.postgres_wal.log_location import LogLocation
from ottla.connect.postgres_wal.restore import RestoreRequest
from ottla.connect.postgres_wal.targets import AtXid
from ottla.testing import Cluster
from ottla.wal import LogSettings, SyncLog
from tests.connect.log_archives import archive_log
from tests.connect.wal_keeping import SETTINGS, Keeper, ask
from tests.support.postgres_server import PostgresServer

ROWS = "SELECT id, n FROM accounts ORDER BY id"


@dataclass(slots=True)
class Story:
    keeper: Keeper
    archives: Path
    """`whole`; `short`, which ends before the log begins; `torn`, with a gap."""
    start: int
    """The log's current start."""
    wanted: RestoreRequest
    """A restore to the last change before that."""
    in_objects: tuple[BackupStore, str]
    """A backup and the whole archive in an object store."""
    rows_then: list[tuple[Any, ...]]
    rows_now: list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, bucket: str) -> Iterator[Story]:
    """A backup and changes, archived except the last record; then the log's head, which the backup needs, is
    deleted."""
    archives = tmp_path_factory.mktemp("archives")
    with Cluster(wal=True) as cluster, PostgresServer(settings=SETTINGS) as server:
        keeper = Keeper(cluster, server, archives)
        with keeper.keeping():
            keeper.sql(
                "CREATE TABLE accounts (id int PRIMARY KEY, n int)",
                "INSERT INTO accounts SELECT id, 0 FROM generate_series(1, 1000) id",
            )
            keeper.backup()
            objects = BackupStore(f"{bucket}/backups")
            keeper.backup(objects)
            for number in range(10):
                keeper.sql(f"UPDATE accounts SET n = {number} WHERE id % 10 = {number}")
            xid = int(keeper.sql("INSERT INTO accounts VALUES (0, 0) RETURNING pg_current_xact_id()::text")[0][0])
            rows_then = keeper.sql(ROWS)
            start = keeper.with_log(lambda log: log.tail()).end_offset
            keeper.sql("DELETE FROM accounts WHERE id % 2 = 0", "CHECKPOINT")
            rows_now = keeper.sql(ROWS)
        end = keeper.with_log(lambda log: log.tail()).end_offset
        batches = {
            "whole": [(0, 2), (2, start - 1), (start - 1, end - 1)],
            "short": [(0, 2)],
            "torn": [(0, 2), (start - 1, end - 1)],
        }
        for name, ranges in batches.items():
            archive_log(keeper.place.servers, keeper.place.name, archives / name, *ranges)
        archive_log(keeper.place.servers, keeper.place.name, f"{bucket}/archive", *batches["whole"])
        assert keeper.with_log(lambda log: log.trim(start)) == start
        in_objects = (objects, f"{bucket}/archive")
        yield Story(keeper, archives, start, RestoreRequest(target=AtXid(xid)), in_objects, rows_then, rows_now)


@pytest.fixture(autouse=True)
def no_archive(story: Story) -> Iterator[None]:
    yield
    story.keeper.archive = None


def refused(keeper: Keeper, wanted: RestoreRequest | None = None) -> str:
    """Checks that nothing was written."""
    target = PostgresServer()
    try:
        with pytest.raises(RefusedError) as refusal:
            keeper.lay_down(target, wanted)
        assert not Path(target.data_dir).exists()
    finally:
        target.close()
    return str(refusal.value)


def test_without_the_archive_it_says_what_to_type(story: Story) -> None:
    for wanted in (story.wanted, None):
        said = refused(story.keeper, wanted)
        assert f"(offset {story.start})" in said
        assert "--archive DIRECTORY" in said
    (finding,) = story.keeper.check()
    assert f"it starts at offset {story.start}" in finding


def test_the_archive_and_the_log_together(story: Story) -> None:
    story.keeper.archive = os.fspath(story.archives / "whole")
    with story.keeper.restored(story.wanted) as restored:
        assert ask(restored, ROWS) == story.rows_then
    with story.keeper.restored() as restored:
        assert ask(restored, ROWS) == story.rows_now
    assert story.keeper.check() == []


def test_a_backup_and_an_archive_in_an_object_store(story: Story) -> None:
    keeper, on_disk = story.keeper, story.keeper.store
    keeper.store, keeper.archive = story.in_objects
    try:
        assert keeper.check() == []
        with keeper.restored(story.wanted) as restored:
            assert ask(restored, ROWS) == story.rows_then
    finally:
        keeper.store = on_disk


def test_the_archive_alone_when_the_brokers_are_lost(story: Story) -> None:
    keeper, place = story.keeper, story.keeper.place
    keeper.place, keeper.without_log = LogLocation("127.0.0.1:1", place.name), True
    keeper.archive = os.fspath(story.archives / "whole")
    try:
        assert keeper.check() == []
        with keeper.restored(story.wanted) as restored:
            assert ask(restored, ROWS) == story.rows_then
        keeper.archive = os.fspath(story.archives / "torn")
        assert "the log starts at 0/" in refused(keeper)
    finally:
        keeper.place, keeper.without_log = place, False


def test_offsets_in_neither_are_named(story: Story) -> None:
    keeper, start = story.keeper, story.start
    keeper.archive = os.fspath(story.archives / "short")
    assert f"up to offset 1, but the log starts at {start}: offsets 2-{start - 1} are in neither" in refused(keeper)
    keeper.archive = os.fspath(story.archives / "torn")
    assert "the log starts at 0/" in refused(keeper)
    assert (
        f"{keeper.archive} lacks offsets 2-{start - 2} of pg; the records before them cannot be used" in keeper.news[-1]
    )


def test_a_damaged_archive_stops_the_server(story: Story) -> None:
    """It must not take the damage for the end of the WAL and open without the rest."""
    keeper = story.keeper
    whole = story.archives / "whole"
    file = next(whole.glob(f"data/**/{2:020d}-*.parquet"))
    content = file.read_bytes()
    keeper.archive = os.fspath(whole)
    target = PostgresServer(settings={**SETTINGS, "hot_standby": "off"})
    try:
        keeper.lay_down(target)
        file.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
        target.spawn()
        assert target.wait() != 0
        assert "has changed since it was written" in target.log()
        assert "child process exited with exit code 255" in target.log()
    finally:
        file.write_bytes(content)
        target.close()


def test_archives_that_are_not_of_this_log(story: Story, tmp_path: Path) -> None:
    keeper = story.keeper
    keeper.archive = os.fspath(tmp_path / "nowhere")
    assert "there is no archive in" in refused(keeper)
    servers = keeper.place.servers
    with SyncLog.open(servers, "other", create=LogSettings()) as other:
        for number in range(story.start + 1):
            other.append(b"%d" % number).result()
    archive_log(servers, "other", tmp_path / "other", (0, 1))
    keeper.archive = os.fspath(tmp_path / "other")
    assert "has no records of pg; it has ['other']" in refused(keeper)
    archive_log(servers, "other", tmp_path / "renamed", (0, story.start + 1), named="pg")
    keeper.archive = os.fspath(tmp_path / "renamed")
    assert f"at offset {story.start} differ" in refused(keeper)
