"""Clicks to sessions and page views, on a stream from topics into topics, compared with a plain model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.client import Consumer, ConsumerRecord
from ottla.spark.jobs.live_log import RECORD_SCHEMA
from ottla.spark.jobs.sessions import (
    SessionTopics,
    count_pages,
    good_clicks,
    parse_clicks,
    session_outputs,
    start_output,
)
from ottla.testing import Cluster
from tests.spark.jobs.change_logs import produce_raw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_MS = 1_794_800_000_000 // 60_000 * 60_000
MINUTE_MS = 60_000


def click(user: str, page: str, minute: float) -> tuple[bytes, bytes]:
    body = {"user": user, "page": page, "time": START_MS + int(minute * MINUTE_MS)}
    return user.encode(), json.dumps(body).encode()


def read_all(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    async def work() -> list[ConsumerRecord]:
        async with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            places = await consumer.partitions(topic)
            ends = await consumer.end_offsets(places)
            consumer.assign(places)
            records: list[ConsumerRecord] = []
            while any([await consumer.position(at) < ends[at] for at in places]):
                records += await consumer.fetch_records(timeout_ms=200)
            return records

    return asyncio.run(work())


def minutes(value: Any) -> float:
    moment = datetime.fromisoformat(value).astimezone(UTC)
    return (moment.timestamp() * 1000 - START_MS) / MINUTE_MS


def test_clicks_become_sessions_once_and_bad_ones_are_set_aside(
    spark: SparkSession, cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topics = SessionTopics(new_topic(1), new_topic(1), new_topic(1), new_topic(1))
    bootstrap = cluster.bootstrap_servers

    outputs = session_outputs(spark, bootstrap, topics, gap="5 minutes", late="1 minute")

    def run(*names: str) -> None:
        """Runs the queries one after another: each starts its own processes."""
        for name in names:
            assert start_output(outputs[name], bootstrap, name, str(tmp_path)).awaitTermination(200)

    clicks = [click("ann", "/", 0), click("bob", "/", 0.5), click("ann", "/a", 2), click("ann", "/b", 6.5)]
    produce_raw(bootstrap, topics.clicks, [*clicks, (b"x", b"no JSON"), (b"y", b'{"page": "/"}')])
    run(topics.sessions, topics.bad)
    # Out of order, but not too late; one that is too late; one that ends all sessions.
    later = [click("ann", "/c", 20), click("bob", "/a", 19.5), click("zed", "/late", 0.1), click("end", "/", 60)]
    produce_raw(bootstrap, topics.clicks, later)
    run(topics.sessions)

    sessions = sorted(
        (row["user"], minutes(row["start"]), minutes(row["end"]), row["clicks"], row["first_page"], row["last_page"])
        for row in (json.loads(each.value or b"") for each in read_all(bootstrap, topics.sessions))
    )
    assert sessions == [
        ("ann", 0, 11.5, 3, "/", "/b"),
        ("ann", 20, 25, 1, "/c", "/c"),
        ("bob", 0.5, 5.5, 1, "/", "/"),
        ("bob", 19.5, 24.5, 1, "/a", "/a"),
    ]
    bad = [(each.value, dict(each.headers)["reason"]) for each in read_all(bootstrap, topics.bad)]
    assert bad == [(b"no JSON", b"the value is not JSON"), (b'{"page": "/"}', b'no "user"')]


def test_views_are_counted_by_page_and_by_the_time_of_the_click(spark: SparkSession) -> None:
    seen = [("ann", "/", 0), ("bob", "/", 0.5), ("ann", "/", 0.9), ("ann", "/a", 0.9), ("bob", "/", 1)]
    rows: list[tuple[object, ...]] = [
        (*click(user, page, minute), "t", 0, number, None, 0, None) for number, (user, page, minute) in enumerate(seen)
    ]
    own = datetime.fromtimestamp((START_MS + 2 * MINUTE_MS) / 1000, UTC)
    iso = b'{"user": "ann", "page": "/", "time": "%s"}' % own.isoformat().encode()
    rows += [(b"", iso, "t", 0, 5, None, 0, None), (b"", b'{"user": "bob", "page": "/"}', "t", 0, 6, own, 0, None)]
    records = spark.createDataFrame(rows, RECORD_SCHEMA)
    found = count_pages(good_clicks(parse_clicks(records))).collect()
    views = sorted(
        (minutes(row["start"].astimezone().isoformat()), row["page"], row["views"], row["users"]) for row in found
    )
    assert views == [(0, "/", 3, 2), (0, "/a", 1, 1), (1, "/", 1, 1), (2, "/", 2, 2)]
