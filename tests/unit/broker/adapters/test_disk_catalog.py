"""The metadata catalog, in SQLite and in memory: same results, and nothing lost by a restart or a failure."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.adapters.catalog import SqliteCatalog
from ottla.broker.standalone.catalog import Catalog, TopicRecord
from ottla.protocol.model.ids import TopicId
from ottla.sim.catalog import SimCatalog

CLUSTER = "a-cluster"
ORDERS = TopicRecord("orders", TopicId(UUID(int=1)), 3, {"retention.ms": "1000"}, 17)
EVENTS = TopicRecord("events", TopicId(UUID(int=2)), 1, {}, 18)

Restart = Callable[[], Catalog]


@pytest.fixture(params=["sqlite", "sim"])
def restart(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restart]:
    """Opens the catalog as a broker does at each start."""
    if request.param == "sim":
        sim = SimCatalog(cluster_id=CLUSTER)
        yield lambda: sim
        return
    opened: list[SqliteCatalog] = []

    def restarted() -> Catalog:
        if opened:
            opened[-1].close()
        opened.append(SqliteCatalog(str(tmp_path / "catalog.db"), cluster_id=CLUSTER))
        return opened[-1]

    yield restarted
    opened[-1].close()


def test_a_new_catalog(restart: Restart) -> None:
    state = restart().load()
    assert (state.cluster_id, state.incarnation, state.next_producer_id) == (CLUSTER, 0, 0)
    assert (state.topics, state.dynamic_configs, state.reserved_offsets) == ([], {}, {})


def test_each_start_is_another_incarnation(restart: Restart) -> None:
    assert [restart().begin_incarnation() for _ in range(3)] == [1, 2, 3]
    assert restart().load().incarnation == 3


def test_topics(restart: Restart) -> None:
    catalog = restart()
    catalog.put_topics([ORDERS, EVENTS])
    assert restart().load().topics == [EVENTS, ORDERS]
    grown = replace(ORDERS, partition_count=5, overrides={"cleanup.policy": "compact", "ü": "ß"})
    restart().put_topic(grown)
    assert restart().load().topics == [EVENTS, grown]
    restart().delete_topic(EVENTS.id)
    restart().delete_topic(EVENTS.id)
    assert restart().load().topics == [grown]


def test_deleted_topics_are_remembered_until_they_are_gone(restart: Restart) -> None:
    restart().put_topics([ORDERS, EVENTS])
    restart().delete_topic(ORDERS.id)
    restart().delete_topic(ORDERS.id)
    assert restart().load().deleted == {ORDERS.id}
    restart().delete_topic(EVENTS.id, gone=[ORDERS.id])
    assert restart().load().deleted == {EVENTS.id}
    restart().forget_deleted([EVENTS.id, ORDERS.id])
    assert restart().load().deleted == frozenset()


def test_a_catalog_from_before_deletions_were_remembered(tmp_path: Path) -> None:
    path = str(tmp_path / "catalog.db")
    catalog = SqliteCatalog(path, cluster_id=CLUSTER)
    catalog.put_topic(ORDERS)
    catalog.close()
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE deleted_topics")
    connection.execute("DROP TABLE entries")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    for _ in range(2):
        catalog = SqliteCatalog(path, cluster_id=CLUSTER)
        assert catalog.load().topics == [ORDERS]
        catalog.close()
    catalog = SqliteCatalog(path, cluster_id=CLUSTER)
    catalog.delete_topic(ORDERS.id)
    assert catalog.load().deleted == {ORDERS.id}
    catalog.close()


def test_a_name_is_used_once(restart: Restart) -> None:
    catalog = restart()
    catalog.put_topic(ORDERS)
    other = replace(ORDERS, id=TopicId(UUID(int=9)))
    with pytest.raises(OSError, match="another topic of this name") as failure:
        catalog.put_topics([EVENTS, other])
    assert failure.value.errno == errno.EEXIST
    assert catalog.load().topics == [ORDERS], "all or nothing"
    catalog.delete_topic(ORDERS.id)
    catalog.put_topic(other)
    assert restart().load().topics == [other]


def test_what_was_loaded_is_a_copy(restart: Restart) -> None:
    catalog = restart()
    catalog.put_topic(ORDERS)
    catalog.load().topics[0].overrides["changed"] = "yes"
    assert catalog.load().topics == [ORDERS]


def test_dynamic_configs_are_replaced(restart: Restart) -> None:
    restart().put_dynamic_configs({"a": "1", "b": "2"})
    restart().put_dynamic_configs({"b": "3"})
    assert restart().load().dynamic_configs == {"b": "3"}


def test_producer_ids_are_given_once(restart: Restart) -> None:
    firsts = [restart().reserve_producer_ids(1000) for _ in range(3)]
    assert firsts == [0, 1000, 2000]
    assert restart().load().next_producer_id == 3000


def test_reserved_offsets_never_go_back(restart: Restart) -> None:
    catalog = restart()
    catalog.reserve_offsets({(ORDERS.id, 0): 1000, (ORDERS.id, 1): 500, (EVENTS.id, 0): 7})
    catalog.reserve_offsets({(ORDERS.id, 0): 900, (ORDERS.id, 1): 600})
    assert restart().load().reserved_offsets == {(ORDERS.id, 0): 1000, (ORDERS.id, 1): 600, (EVENTS.id, 0): 7}
    restart().delete_topic(ORDERS.id)
    assert restart().load().reserved_offsets == {(EVENTS.id, 0): 7}


def test_the_simulated_one_fails_on_request() -> None:
    catalog = SimCatalog()
    catalog.fail(errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        catalog.put_topic(ORDERS)
    assert catalog.load().topics == []
    catalog.fail(None)
    catalog.put_topic(ORDERS)


def test_it_is_as_durable_as_sqlite_can_be(tmp_path: Path) -> None:
    catalog = SqliteCatalog(str(tmp_path / "catalog.db"), cluster_id=CLUSTER)
    connection = catalog._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (3,), "EXTRA"
    catalog.close()


def test_a_killed_broker_keeps_what_was_put(tmp_path: Path) -> None:
    path = str(tmp_path / "catalog.db")
    program = f"""
import os, signal
from tests.unit.broker.adapters.test_disk_catalog import ORDERS, CLUSTER, SqliteCatalog
catalog = SqliteCatalog({path!r}, cluster_id=CLUSTER)
catalog.put_topic(ORDERS)
catalog._connection.execute("BEGIN IMMEDIATE")
catalog._connection.execute("DELETE FROM topics")
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).resolve().parents[4]
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=root).returncode == -9
    catalog = SqliteCatalog(path, cluster_id=CLUSTER)
    assert catalog.load().topics == [ORDERS]
    catalog.close()


def test_several_threads_take_turns(tmp_path: Path) -> None:
    catalog = SqliteCatalog(str(tmp_path / "catalog.db"), cluster_id=CLUSTER)
    firsts: list[int] = []
    threads = [threading.Thread(target=lambda: firsts.append(catalog.reserve_producer_ids(10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(firsts) == list(range(0, 80, 10))
    catalog.close()


def test_a_lock_held_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.adapters.catalog.BUSY_TIMEOUT_S", 0.05)
    path = str(tmp_path / "catalog.db")
    catalog = SqliteCatalog(path, cluster_id=CLUSTER)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OSError, match="another process has locked the metadata") as failure:
        catalog.put_topic(ORDERS)
    assert failure.value.errno == errno.EBUSY
    other.execute("ROLLBACK")
    other.close()
    catalog.put_topic(ORDERS)
    catalog.close()


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(OSError, match="the metadata is damaged") as failure:
        SqliteCatalog(str(path), cluster_id=CLUSTER)
    assert failure.value.errno == errno.EIO
    assert failure.value.filename == str(path)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be opened"):
        SqliteCatalog(str(tmp_path / "missing" / "catalog.db"), cluster_id=CLUSTER)


def test_a_catalog_of_another_cluster_or_a_newer_version(tmp_path: Path) -> None:
    path = str(tmp_path / "catalog.db")
    SqliteCatalog(path, cluster_id=CLUSTER).close()
    with pytest.raises(OSError, match="belongs to the cluster a-cluster, not to other"):
        SqliteCatalog(path, cluster_id="other")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 4")
    connection.close()
    with pytest.raises(OSError, match=r"newer Ottla \(schema 4; this version reads up to 3\)\. Upgrade"):
        SqliteCatalog(path, cluster_id=CLUSTER)


def fill(fd: int) -> None:
    with suppress(OSError):
        while True:
            os.write(fd, bytes(4096))


def test_a_full_disk_and_space_again(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(mounted)]
    if not shutil.which("mount") or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        catalog = SqliteCatalog(str(mounted / "catalog.db"), cluster_id=CLUSTER)
        catalog.put_topic(ORDERS)
        filler = os.open(mounted / "filler", os.O_RDWR | os.O_CREAT)
        fill(filler)
        with pytest.raises(OSError, match="no space left for the metadata") as failure:
            catalog.put_topics([replace(EVENTS, overrides={"big": "x" * 20_000})])
        assert failure.value.errno == errno.ENOSPC
        assert catalog.load().topics == [ORDERS]
        os.ftruncate(filler, 0)
        os.close(filler)
        catalog.put_topic(EVENTS)
        assert catalog.load().topics == [EVENTS, ORDERS]
        catalog.close()
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)
