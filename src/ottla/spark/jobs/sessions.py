"""Web analytics: derives sessions and page views from clicks, by event time.

A click is a JSON object with `user`, `page` and `time` (ISO 8601, or milliseconds); without `time`, the record's own
timestamp is used. The functions work on batches and on streams. A stream emits a result once, when the watermark has
passed it; later clicks are dropped.

    clicks = good_clicks(parse_clicks(records))
    sessions = find_sessions(clicks, gap="30 minutes", late="10 minutes")
    pages = count_pages(clicks, window="1 minute", late="10 minutes")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.archive.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

GAP = "30 minutes"
WINDOW = "1 minute"
LATE = "10 minutes"


def parse_clicks(records: DataFrame) -> DataFrame:
    """Adds user, page and time of each record, or the reason why it is not a click, to the record's own columns."""
    from pyspark.sql import functions as sf

    text = sf.col("value").cast("string")
    parsed = sf.try_parse_json(text)
    named = records.withColumn("_p", parsed)
    written = sf.try_variant_get("_p", "$.time", "string")
    in_ms = sf.try_variant_get("_p", "$.time", "bigint")
    time = sf.when(written.isNull(), sf.col("timestamp")).otherwise(
        sf.coalesce(sf.timestamp_millis(in_ms), sf.try_to_timestamp(written))
    )
    clicks = named.withColumns(
        {
            "user": sf.try_variant_get("_p", "$.user", "string"),
            "page": sf.try_variant_get("_p", "$.page", "string"),
            "time": time,
        }
    )
    return clicks.withColumn("reason", _reason()).drop("_p")


def _reason() -> Column:
    from pyspark.sql import functions as sf

    return (
        sf.when(sf.col("value").isNull(), sf.lit("no value"))
        .when(sf.col("_p").isNull(), sf.lit("the value is not JSON"))
        .when(sf.col("user").isNull(), sf.lit('no "user"'))
        .when(sf.col("page").isNull(), sf.lit('no "page"'))
        .when(sf.col("time").isNull(), sf.lit('"time" is not a time'))
    )


def good_clicks(parsed: DataFrame) -> DataFrame:
    """Returns the user, page and time of the clicks that were parsed without a fault."""
    return parsed.where("reason IS NULL").select("user", "page", "time")


def bad_clicks(parsed: DataFrame) -> DataFrame:
    """Returns the unchanged records for a dead-letter topic, with the reason and the origin in headers."""
    from pyspark.sql import functions as sf

    def header(name: str, value: Column) -> Column:
        return sf.struct(sf.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))

    place = [header(name, sf.col(name)) for name in ("topic", "partition", "offset")]
    headers = sf.array(header("reason", sf.col("reason")), *place)
    return parsed.where("reason IS NOT NULL").select("key", "value", headers.alias("headers"))


def find_sessions(clicks: DataFrame, *, gap: str = GAP, late: str = LATE) -> DataFrame:
    """Returns user, start, end, clicks, first and last page of each session.

    A session ends when its user was inactive for the gap; `end` is the time of the last click plus the gap.
    """
    from pyspark.sql import functions as sf

    grouped = clicks.withWatermark("time", late).groupBy("user", sf.session_window("time", gap).alias("session"))
    found = grouped.agg(
        sf.count(sf.lit(1)).alias("clicks"),
        sf.min_by("page", "time").alias("first_page"),
        sf.max_by("page", "time").alias("last_page"),
    )
    start, end = sf.col("session.start").alias("start"), sf.col("session.end").alias("end")
    return found.select("user", start, end, "clicks", "first_page", "last_page")


def count_pages(clicks: DataFrame, *, window: str = WINDOW, late: str = LATE) -> DataFrame:
    """Returns page, start, end, views, and the approximate number of users of each window."""
    from pyspark.sql import functions as sf

    grouped = clicks.withWatermark("time", late).groupBy("page", sf.window("time", window).alias("window"))
    found = grouped.agg(sf.count(sf.lit(1)).alias("views"), sf.approx_count_distinct("user").alias("users"))
    start, end = sf.col("window.start").alias("start"), sf.col("window.end").alias("end")
    return found.select("page", start, end, "views", "users")


def as_records(rows: DataFrame, key: str) -> DataFrame:
    """Converts each row to a record: one column is the key, and all columns form a JSON object."""
    from pyspark.sql import functions as sf

    value = sf.to_json(sf.struct(*rows.columns))
    return rows.select(sf.col(key).cast("binary").alias("key"), value.cast("binary").alias("value"))


@dataclass(frozen=True, slots=True)
class SessionTopics:
    """The topics that the job reads and writes."""

    clicks: str
    sessions: str
    pages: str
    bad: str


def session_outputs(
    spark: SparkSession,
    bootstrap: str,
    topics: SessionTopics,
    *,
    gap: str = GAP,
    window: str = WINDOW,
    late: str = LATE,
) -> dict[str, DataFrame]:
    """Returns the records for each output topic, as streams."""
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topics.clicks).option("startingOffsets", "earliest")
    parsed = parse_clicks(reader.option("kafka.isolation.level", "read_committed").load())
    clicks = good_clicks(parsed)
    return {
        topics.sessions: as_records(find_sessions(clicks, gap=gap, late=late), "user"),
        topics.pages: as_records(count_pages(clicks, window=window, late=late), "page"),
        topics.bad: bad_clicks(parsed),
    }


def start_output(
    rows: DataFrame, bootstrap: str, topic: str, checkpoints: str, *, interval: str | None = None
) -> StreamingQuery:
    """Starts a streaming query that writes to its topic exactly once, with a checkpoint of its own.

    It processes what is available and ends, or, with an interval such as `1 second`, continues.
    """
    writer = rows.writeStream.format("ottla").outputMode("append").queryName(topic)
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    if "headers" in rows.columns:
        writer = writer.option("includeHeaders", "true")
    writer = writer.option("checkpointLocation", Store(checkpoints).spark_path(topic))
    triggered = writer.trigger(availableNow=True) if interval is None else writer.trigger(processingTime=interval)
    return triggered.start()
