"""Web activity: clicks to sessions and to views of pages, by event time.

A click is a JSON object with `user` and `page`, and a `time` (ISO 8601, or milliseconds); without one, the record's own
timestamp is the time. The functions work on batches and on streams. On a stream a result is given out once, when the
watermark has passed it: what comes later than that is left out.

    clicks = good_clicks(parse_clicks(records))
    sessions = find_sessions(clicks, gap="30 minutes", late="10 minutes")
    pages = count_pages(clicks, window="1 minute", late="10 minutes")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.spark.jobs.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

GAP = "30 minutes"
WINDOW = "1 minute"
LATE = "10 minutes"


def parse_clicks(records: DataFrame) -> DataFrame:
    """user, page and time of each record, or the reason why it is no click; the record's own columns stay."""
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
        .when(sf.col("time").isNull(), sf.lit('"time" is no time'))
    )


def good_clicks(parsed: DataFrame) -> DataFrame:
    return parsed.where("reason IS NULL").select("user", "page", "time")


def bad_clicks(parsed: DataFrame) -> DataFrame:
    """As they came, for a dead-letter topic: the reason and the place in headers."""
    from pyspark.sql import functions as sf

    def header(name: str, value: Column) -> Column:
        return sf.struct(sf.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))

    place = [header(name, sf.col(name)) for name in ("topic", "partition", "offset")]
    headers = sf.array(header("reason", sf.col("reason")), *place)
    return parsed.where("reason IS NOT NULL").select("key", "value", headers.alias("headers"))


def find_sessions(clicks: DataFrame, *, gap: str = GAP, late: str = LATE) -> DataFrame:
    """user, start, end, clicks, first and last page. A session ends when its user was silent for the gap; `end` is the
    last click's time and the gap."""
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
    """page, start, end, views, and about how many users."""
    from pyspark.sql import functions as sf

    grouped = clicks.withWatermark("time", late).groupBy("page", sf.window("time", window).alias("window"))
    found = grouped.agg(sf.count(sf.lit(1)).alias("views"), sf.approx_count_distinct("user").alias("users"))
    start, end = sf.col("window.start").alias("start"), sf.col("window.end").alias("end")
    return found.select("page", start, end, "views", "users")


def as_records(rows: DataFrame, key: str) -> DataFrame:
    """A record for each row: one column as the key, all of them as a JSON object."""
    from pyspark.sql import functions as sf

    value = sf.to_json(sf.struct(*rows.columns))
    return rows.select(sf.col(key).cast("binary").alias("key"), value.cast("binary").alias("value"))


@dataclass(frozen=True, slots=True)
class SessionTopics:
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
    """The records for each of the topics, as streams."""
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
    """A streaming query, exactly once into its topic, with a checkpoint of its own: what is there now, and then its
    end; or, with an interval such as `1 second`, whatever comes."""
    writer = rows.writeStream.format("ottla").outputMode("append").queryName(topic)
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    if "headers" in rows.columns:
        writer = writer.option("includeHeaders", "true")
    writer = writer.option("checkpointLocation", Store(checkpoints).spark_path(topic))
    triggered = writer.trigger(availableNow=True) if interval is None else writer.trigger(processingTime=interval)
    return triggered.start()
