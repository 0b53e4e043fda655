"""Reads an archive: only files that the manifest names, and only those that may contain the requested records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING

from ottla.archive.manifest import DATA, ArchivedFile, Manifest
from ottla.archive.ranges import OffsetRange
from ottla.archive.store import Store
from ottla.client.consumer.types import TopicPartition
from ottla.spark.jobs.live_log import RECORD_COLUMNS, RECORD_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_archive(
    spark: SparkSession,
    store: Store,
    manifest: Manifest,
    ranges: Mapping[TopicPartition, Iterable[OffsetRange]] | None = None,
) -> DataFrame:
    """Returns the records of the ranges, or all records, with the same columns as the live log."""
    if ranges is None:
        ranges = {at: manifest.archived(at) for at in manifest.partitions()}
    wanted = [(at, each) for at, many in ranges.items() for each in many if len(each)]
    files = {
        file.path: file
        for at, each in wanted
        for file in manifest.files_of(at)
        if each.intersection(file.span) is not None
    }
    rows = _open(spark, store, files.values())
    if all(any(file.at == at and each.contains(file.span) for at, each in wanted) for file in files.values()):
        return rows
    return rows.where(reduce(lambda one, other: one | other, [_is_in(at, each) for at, each in wanted]))


def first_offsets_at(
    spark: SparkSession, store: Store, manifest: Manifest, partitions: Iterable[TopicPartition], time_ms: int
) -> dict[TopicPartition, int]:
    """Returns, for each partition, the offset of the first record at or after the time. Partitions without one are
    omitted."""
    from pyspark.sql import functions as sf

    files = [
        file for at in partitions for file in manifest.files_of(at) if file.timestamp_max_ms >= time_ms and file.rows
    ]
    late = _open(spark, store, files).where(sf.col("timestamp") >= sf.lit(_EPOCH + timedelta(milliseconds=time_ms)))
    found = late.groupBy("topic", "partition").agg(sf.min("offset").alias("first")).collect() if files else []
    return {TopicPartition(row["topic"], row["partition"]): row["first"] for row in found}


def _open(spark: SparkSession, store: Store, files: Iterable[ArchivedFile]) -> DataFrame:
    paths = [store.spark_path(file.path) for file in files]
    if not paths:
        return spark.createDataFrame([], RECORD_SCHEMA)
    reader = spark.read.schema(RECORD_SCHEMA).option("basePath", store.spark_path(DATA))
    return reader.parquet(*paths).select(*RECORD_COLUMNS)


def _is_in(at: TopicPartition, offsets: OffsetRange) -> Column:
    from pyspark.sql import functions as sf

    is_there = (sf.col("topic") == at.topic) & (sf.col("partition") == at.partition)
    return is_there & (sf.col("offset") >= offsets.start) & (sf.col("offset") < offsets.end)
