"""Reads an archive without Spark: records in offset order, and damage is reported."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.archive.failures import DamagedError, PipelineError
from ottla.archive.manifest import Change, ManifestLog
from ottla.archive.ranges import OffsetRange
from ottla.archive.records import ArchivedRecord, ArchivedRecords
from ottla.archive.store import Store
from ottla.spark.jobs import archive_files
from ottla.spark.jobs.archive import archive_available
from ottla.spark.jobs.archive_files import FileWriter
from ottla.spark.jobs.live_log import BrokerLog
from ottla.testing import Cluster
from ottla.wal import LogSettings, SyncLog
from tests.spark.jobs.archives import AT, append, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(archive: ArchivedRecords, first: int, until: int) -> list[ArchivedRecord]:
    return [each for chunk in archive.read(first, until) for each in chunk]


def test_any_range_over_many_files_and_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With offsets without a record, as those of transaction markers."""
    monkeypatch.setattr(archive_files, "ROW_GROUP_BYTES", 1)
    store, chance = Store(str(tmp_path)), random.Random(5)
    there: list[int] = []
    for start in range(0, 200, 40):
        offsets = sorted(chance.sample(range(start, start + 40), 25))
        append(store, OffsetRange(start, start + 40), offsets)
        there += offsets
    archive = ArchivedRecords(str(tmp_path), "orders")
    assert archive.ranges == [OffsetRange(0, 200)]
    for _ in range(50):
        first, until = sorted(chance.sample(range(201), 2))
        found = read(archive, first, until)
        assert [each.offset for each in found] == [each for each in there if first <= each < until]
        assert all(each.value == b"v%d" % each.offset for each in found)
    assert read(archive, 7, 7) == []


def test_days_that_share_a_stretch_of_offsets(tmp_path: Path) -> None:
    """Around midnight, records of two days alternate; each day has a file."""
    store = Store(str(tmp_path))
    asked, log = OffsetRange(0, 20), ManifestLog(store)
    files = []
    for day, offsets in (("2026-11-16", [0, 1, 2, 5, 6, 9]), ("2026-11-17", [3, 4, 7, 8, 10, 11, 19])):
        writer = FileWriter(store, AT, day, f"{day}.parquet", asked)
        writer.append(records(offsets))
        files.append(writer.close())
    log.commit(log.load(), Change("append", 0, {AT: asked}, {}, files))
    found = read(ArchivedRecords(str(tmp_path), "orders"), 2, 20)
    assert [each.offset for each in found] == [*range(2, 12), 19]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no archive in"):
        ArchivedRecords(str(tmp_path / "nowhere"), "orders")
    store = Store(str(tmp_path))
    file = append(store, OffsetRange(0, 10))
    append(store, OffsetRange(12, 20))
    assert ArchivedRecords(str(tmp_path), "orders").gaps == [OffsetRange(10, 12)]
    with pytest.raises(PipelineError, match="has no records of payments"):
        ArchivedRecords(str(tmp_path), "payments")
    path = tmp_path / file.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=r"has changed since it was written.*archive verify"):
        read(ArchivedRecords(str(tmp_path), "orders"), 0, 20)
    path.unlink()
    with pytest.raises(DamagedError, match="cannot be read"):
        read(ArchivedRecords(str(tmp_path), "orders"), 0, 20)


def test_what_the_job_archives_of_a_write_ahead_log_is_what_the_log_has(spark: SparkSession, tmp_path: Path) -> None:
    """Entries of many sizes, and the fence of a second writer between them, which is no record."""
    chance, name = random.Random(9), f"log-{uuid.uuid4().hex[:8]}"
    with Cluster(wal=True) as cluster:
        for _ in range(2):
            with SyncLog.open(cluster.wal_servers, name, create=LogSettings(), fence=True) as writer:
                for _ in range(20):
                    writer.append(chance.randbytes(chance.choice([0, 1, 1000, 300_000]))).result()
        log = BrokerLog(cluster.bootstrap_servers)
        rows = [batch.rows for batch in archive_available(spark, log, Store(str(tmp_path)), [name], offsets_max=25)]
        assert len(rows) > 1
        archive = ArchivedRecords(str(tmp_path), name)
        with SyncLog.open(cluster.wal_servers, name) as live:
            tail = live.tail()
            assert archive.ranges == [OffsetRange(0, tail.end_offset)]
            expected = list(live.read(0))
        assert len(expected) == sum(rows) == 40
        found = read(archive, 0, tail.end_offset)
        assert [tuple(each) for each in found] == [tuple(each) for each in expected]
