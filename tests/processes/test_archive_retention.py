"""Retention of seconds that waits for the archive, in a real cluster: what it keeps, deletes and logs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import pytest

from ottla.client import Admin, Producer
from ottla.testing import Cluster
from tests.processes.traffic import ends, read

RECORDS = 60
RETENTION_MS = 500
TIMEOUT_S = 60


def note_archived(cluster: Cluster, topic: str, end_offset: int) -> None:
    """Commits an archived offset, as the archive does."""

    async def commit() -> None:
        async with Admin(cluster.bootstrap_servers) as admin:
            assert not await admin.alter_group_offsets(f"archive-of-{topic}", {(topic, 0): end_offset})

    asyncio.run(commit())


def wait_until(is_reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_reached():
        assert time.monotonic() < deadline, f"not after {TIMEOUT_S} s: {what}"
        time.sleep(0.1)


def start(cluster: Cluster, topic: str) -> int:
    return ends(cluster.bootstrap_servers, topic)[0]


def wait_for_start(cluster: Cluster, topic: str, is_reached: Callable[[int], bool]) -> int:
    wait_until(lambda: is_reached(start(cluster, topic)), f"the start of {topic}, which is {start(cluster, topic)}")
    return start(cluster, topic)


def fill(cluster: Cluster, topic: str, **configs: object) -> None:
    settings = {"retention_ms": RETENTION_MS, "segment_bytes": 4096, **configs}
    cluster.create_topic(topic, 1, replication_factor=3, **settings)

    async def write() -> None:
        """Writes records one by one: a segment takes a batch as a whole, however large it is."""
        async with Producer(cluster.bootstrap_servers) as producer:
            for _ in range(RECORDS):
                await producer.send(topic, b"x" * 1000, partition=0)

    asyncio.run(write())


def test_retention_waits_for_the_archive(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(brokers=3) as cluster, caplog.at_level(logging.ERROR, "ottla"):
        # Four groups, so that some coordinators are on the leader and some elsewhere.
        waiting = [f"waits-{number}" for number in range(4)]
        for topic in waiting:
            fill(cluster, topic, ottla_archive_group=f"archive-of-{topic}")
        fill(cluster, "bounded", ottla_archive_group="nobody", ottla_archive_wait_max_bytes=20_000)
        fill(cluster, "plain")
        # Each of these has expired too by the time the topic without an archive is empty.
        wait_for_start(cluster, "plain", lambda found: found == RECORDS)
        left = wait_for_start(cluster, "bounded", lambda found: found > 0)
        assert left < RECORDS, "only what is beyond the bound is gone"
        assert "DELETED BEFORE THEY WERE ARCHIVED" in caplog.text
        assert "bounded-0" in caplog.text
        assert not any(topic in caplog.text for topic in waiting)
        for topic in waiting:
            assert start(cluster, topic) == 0
            assert len(read(cluster.bootstrap_servers, topic)) == RECORDS
        for topic in waiting:
            note_archived(cluster, topic, 30)
            assert wait_for_start(cluster, topic, lambda found: found > 0) <= 30
        killed = cluster.leader_of(waiting[0])
        cluster.kill(killed)
        wait_until(lambda: cluster.leader_of(waiting[0]) not in (killed, None), "there is a new leader")
        assert start(cluster, waiting[0]) <= 30, "the next leader waits too"
        cluster.start(killed)
        for topic in waiting:
            note_archived(cluster, topic, RECORDS)
            wait_for_start(cluster, topic, lambda found: found == RECORDS)
        assert not any(topic in caplog.text for topic in waiting)
