"""A table as of an earlier time, compared with a model that replays every change in plain Python."""

from __future__ import annotations

import csv
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from ottla.archive.failures import LostOffsetsError, PipelineError
from ottla.archive.store import Store
from ottla.spark.jobs.archive import archive_available
from ottla.spark.jobs.changes import Envelope
from ottla.spark.jobs.live_log import BrokerLog
from ottla.spark.jobs.materialize import materialize
from ottla.spark.jobs.restore import AtEnd, AtOffsets, AtTime, Point, RestoredTable, parse_offsets, restore
from ottla.spark.jobs.restore_targets import parse_target, table_for_output, write_output
from ottla.spark.jobs.table_history import History
from ottla.spark.jobs.tables import Table
from ottla.testing import Cluster
from tests.spark.jobs.change_logs import START_MS, Model, delete_before, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
POINTS = 20


def values(restored: RestoredTable) -> dict[str, str]:
    """Only the restored values, not derived columns, which would cost another job at each point."""
    rows = {row["_key"]: row["_value"] for row in restored.state.collect()}
    restored.close()
    return rows


def random_point(chance: random.Random, model: Model) -> tuple[Point, list[int]]:
    if chance.random() < 0.5:
        time_ms = chance.randrange(START_MS - 10, model.clock_ms + 20)
        return AtTime(time_ms), model.cut_at_time(time_ms)
    cut = [chance.randrange(end + 1) for end in model.ends()]
    return AtOffsets(dict(enumerate(cut))), cut


def test_restored_tables_equal_the_model_before_and_after_retention(
    spark: SparkSession, cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path, seed: int
) -> None:
    """Changes in the archive, then in a snapshot, then only in the live log; then retention deletes archived ones."""
    chance = random.Random(seed)
    topic, log, model = new_topic(PARTITIONS), BrokerLog(cluster.bootstrap_servers), Model(PARTITIONS)
    archive, table = Store(str(tmp_path / "archive")), Table(Store(str(tmp_path / "table")))

    produce(cluster.bootstrap_servers, topic, model.grow(chance, 300))
    list(archive_available(spark, log, archive, [topic]))
    made = materialize(spark, History.open(topic, archive=archive, log=log), table, Envelope.PLAIN)
    assert made is not None
    assert (made.rows, list(made.covers.values())) == (len(model.table(model.ends())), model.ends())
    produce(cluster.bootstrap_servers, topic, model.grow(chance, 300))
    list(archive_available(spark, log, archive, [topic]))
    archived = model.ends()
    produce(cluster.bootstrap_servers, topic, model.grow(chance, 300))

    def check(points: list[tuple[Point, list[int]]], table: Table | None) -> None:
        history = History.open(topic, archive=archive, log=log)
        for point, cut in points:
            found = restore(spark, history, point, Envelope.PLAIN, table=table, columns={})
            assert list(found.cut.values()) == cut, point
            assert values(found) == model.table(cut), point

    points = [random_point(chance, model) for _ in range(POINTS)]
    check(points, table)
    delete_before(cluster.bootstrap_servers, topic, archived)
    check(points, table)
    check(points[:3], None)
    with pytest.raises(LostOffsetsError, match="missing in both the archive and the log"):
        restore(spark, History.open(topic, archive=None, log=log), AtEnd(), Envelope.PLAIN)


def test_snapshots_follow_one_another_and_restore_begins_with_the_right_one(
    spark: SparkSession, cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, log, model = new_topic(PARTITIONS), BrokerLog(cluster.bootstrap_servers), Model(PARTITIONS)
    table, chance = Table(Store(str(tmp_path))), random.Random(1)
    cuts = []
    for _ in range(2):
        produce(cluster.bootstrap_servers, topic, model.grow(chance, 100))
        made = materialize(spark, History.open(topic, archive=None, log=log), table, Envelope.PLAIN)
        assert made is not None
        assert made.changes == 100
        cuts.append(model.ends())
        rows = {row["id"]: row["_value"] for row in table.read(spark, made).collect()}
        assert rows == model.table(model.ends())
    assert materialize(spark, History.open(topic, archive=None, log=log), table, Envelope.PLAIN) is None

    delete_before(cluster.bootstrap_servers, topic, cuts[0])
    history = History.open(topic, archive=None, log=log)
    for number, cut in enumerate(cuts):
        found = restore(spark, history, AtOffsets(dict(enumerate(cut))), Envelope.PLAIN, table=table, columns={})
        assert found.snapshot is not None
        assert (found.snapshot.number, found.from_archive, found.from_log) == (number, 0, 0)
        assert values(found) == model.table(cut)
    early = AtOffsets({0: cuts[0][0] - 1, 1: cuts[0][1]})
    with pytest.raises(LostOffsetsError):
        restore(spark, history, early, Envelope.PLAIN, table=table)
    with pytest.raises(PipelineError, match="is the table of"):
        materialize(spark, history, table, Envelope.DEBEZIUM)


def test_what_is_restored_is_the_same_in_every_format(
    spark: SparkSession, cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, log, model = new_topic(1), BrokerLog(cluster.bootstrap_servers), Model(1)
    produce(cluster.bootstrap_servers, topic, model.grow(random.Random(2), 100))
    found = restore(spark, History.open(topic, archive=None, log=log), AtEnd(), Envelope.PLAIN)
    rows = table_for_output(found.rows, key_column="id")
    expected = sorted((each["id"], each["n"]) for each in map(json.loads, model.table(model.ends()).values()))

    for place in ("out.parquet", "out.csv", "out.sqlite#rows"):
        target = parse_target(str(tmp_path / place), "unused")
        write_output(rows, target)
        with pytest.raises(PipelineError, match="--overwrite replaces it"):
            write_output(rows, target)
        write_output(rows, target, overwrite=True)
    parquet = pq.read_table(tmp_path / "out.parquet").to_pylist()
    with (tmp_path / "out.csv").open(newline="") as lines:
        from_csv = [(row["id"], int(row["n"])) for row in csv.DictReader(lines)]
    database = sqlite3.connect(tmp_path / "out.sqlite")
    from_sqlite = database.execute("SELECT id, n FROM rows ORDER BY id").fetchall()
    database.close()
    assert sorted((row["id"], row["n"]) for row in parquet) == expected
    assert sorted(from_csv) == expected
    assert from_sqlite == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.parquet", "out.sqlite"]


def test_a_point_that_says_too_little_is_refused() -> None:
    assert parse_offsets("12", 1) == AtOffsets({0: 12})
    assert parse_offsets("1:5,0:12", 2) == AtOffsets({0: 12, 1: 5})
    assert parse_offsets("2026-01-31T12:00", 1) is None
    with pytest.raises(PipelineError, match="give an offset for each"):
        parse_offsets("12", 2)
    with pytest.raises(PipelineError, match="give one offset for each"):
        parse_offsets("0:12", 2)


@pytest.mark.parametrize("place", ["postgresql://", "orders.txt", "parquet:"])
def test_a_place_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(PipelineError, match=r"is not a table address|is not a restore target"):
        parse_target(place, "orders")
