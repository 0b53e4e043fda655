"""Recovery over `ottla.wal`, on real brokers in this process: leaders, followers and trimming, while a broker dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ottla.recovery import (
    Follower,
    KafkaLog,
    NotLeadingError,
    Point,
    RowTables,
    SnapshotStore,
    WritableLog,
    lead,
    put,
    recover,
)
from ottla.recovery.entries import Kind
from ottla.testing import Cluster
from ottla.wal import Log, LogSettings

SETTINGS = LogSettings(durability="memory", retention_ms=60_000)


async def opened(cluster: Cluster, *, fence: bool) -> Log:
    return await Log.open(cluster.wal_servers, "wal", create=SETTINGS, fence=fence)


async def test_a_follower_takes_over_and_the_old_leader_gets_nothing_in(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "snapshots", keep=1)
    async with Cluster(wal=True) as cluster:
        first: WritableLog = await opened(cluster, fence=True)
        old = await lead(first, RowTables(), store)
        follower = Follower(await opened(cluster, fence=False), RowTables(), store)
        await follower.start()
        for number in range(100):
            old.write_nowait(put(b"n", b"%d" % number))
        await old.write_transaction([(Kind.PUT, "", b"t", b"1"), (Kind.PUT, "", b"u", b"2")])
        last = await old.write_digest()
        await follower.wait_for(last)
        assert follower.applier.digest() == old.applier.digest()
        await old.snapshot()
        new = await follower.take_over(await opened(cluster, fence=True))
        with pytest.raises(NotLeadingError):
            await old.write(put(b"n", b"too late"))
        await new.write(put(b"n", b"new"))
        rows = RowTables()
        await recover(KafkaLog(cluster.bootstrap_servers, "wal"), rows)
        assert rows.rows == {b"n": b"new", b"t": b"1", b"u": b"2"}
        before = await new.trim()
        assert before is not None
        assert before == next(iter(store.snapshots())).position.begin_offset  # type: ignore[union-attr] # it is complete
        again = RowTables()
        recovered = await recover(
            await opened(cluster, fence=False), again, snapshots=store, until=Point(offset=last + 1)
        )
        assert recovered.snapshot is not None
        assert again.rows[b"n"] == b"99"


async def test_three_brokers_a_log_in_memory_and_the_death_of_its_leader() -> None:
    """A WAL that is kept for a minute: three copies in memory, and none on a disk."""
    async with Cluster(brokers=3, wal=True) as cluster:
        leader = await lead(await opened(cluster, fence=True), RowTables())
        writes = [leader.write_nowait(put(b"%d" % number, b"")) for number in range(50)]
        await asyncio.gather(*writes)
        broker = cluster.leader_of("wal")
        assert broker is not None
        await asyncio.to_thread(cluster.kill, broker)
        await asyncio.gather(*[leader.write_nowait(put(b"%d" % number, b"")) for number in range(50, 100)])
        rows = RowTables()
        await recover(await opened(cluster, fence=False), rows)
        assert sorted(rows.rows) == sorted(b"%d" % number for number in range(100))
        assert rows.digest() == leader.applier.digest()
