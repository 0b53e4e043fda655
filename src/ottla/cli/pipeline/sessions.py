"""`ottla pipeline sessions`: computes user sessions and page view counts from clicks."""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.client_security import client_security
from ottla.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, count_text, print_table, run, say
from ottla.cli.pipeline.spark import DEFAULT_MASTER, Master, Settings, spark_session
from ottla.cli.pipeline.stop import StopRequest, until_interrupted

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_INTERVAL = re.compile(r"\s*(?:\d+\s+(?:milli|micro)?(?:second|minute|hour|day|week)s?\s*)+", re.IGNORECASE)
POLL_S = 0.5
INTERVAL = "1 second"
BATCH_PATIENCE_S = 30.0
"""How long a query may take to finish its batch before it is stopped; the next run repeats an unfinished batch."""


def sessions(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", help='The topic of clicks: {"user": ..., "page": ..., "time": ...}', show_default=False
        ),
    ],
    checkpoints: Annotated[
        str,
        typer.Option(
            "--checkpoints",
            metavar="DIR",
            help="Store checkpoints here, from which the next run continues.",
            show_default=False,
        ),
    ],
    sessions_to: Annotated[
        str | None, typer.Option("--sessions-to", help="Write sessions to this topic (default: TOPIC-sessions).")
    ] = None,
    pages_to: Annotated[
        str | None, typer.Option("--pages-to", help="Write page views to this topic (default: TOPIC-pages).")
    ] = None,
    bad_to: Annotated[
        str | None,
        typer.Option("--bad-to", help="Write records that are not clicks to this topic (default: TOPIC-bad)."),
    ] = None,
    gap: Annotated[str, typer.Option("--gap", help="End a session after this long without a click.")] = "30 minutes",
    window: Annotated[str, typer.Option("--window", help="Count page views per window of this length.")] = "1 minute",
    late: Annotated[str, typer.Option("--late", help="Wait this long for late clicks.")] = "10 minutes",
    continuous: Annotated[bool, typer.Option("--continuous", help="Continue as clicks arrive, until Ctrl-C.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = DEFAULT_MASTER,
    conf: Settings = None,
) -> None:
    """Computes sessions and counts page views by event time, and writes each result to topics exactly once."""
    for option, text in (("--gap", gap), ("--window", window), ("--late", late)):
        if not _INTERVAL.fullmatch(text):
            raise typer.BadParameter(f'"{text}" is not an interval such as 30 seconds or 10 minutes', param_hint=option)
    run(_check_topic(bootstrap, topic))
    with spark_session("sessions", master, conf) as spark:
        from ottla.spark.jobs.sessions import SessionTopics, session_outputs, start_output

        topics = SessionTopics(
            topic, sessions_to or f"{topic}-sessions", pages_to or f"{topic}-pages", bad_to or f"{topic}-bad"
        )
        run(_create(bootstrap, [topics.sessions, topics.pages, topics.bad]))
        outputs = session_outputs(spark, bootstrap, topics, gap=gap, window=window, late=late)
        interval = INTERVAL if continuous else None
        queries = [
            start_output(rows, bootstrap, into, checkpoints, interval=interval) for into, rows in outputs.items()
        ]
        try:
            with until_interrupted() if continuous else contextlib.nullcontext(StopRequest()) as stop:
                watch(queries, stop)
                for query in queries:
                    end_between_batches(query)
        finally:
            for query in queries:
                query.stop()
        rows = [(query.name, *_totals(query)) for query in queries]
        print_table(["into", "clicks read", "batches"], rows, right=["clicks read", "batches"])


async def _check_topic(bootstrap: str, topic: str) -> None:
    """Raises ClientError if the topic does not exist, before topics are created for its results."""
    from ottla.client import Admin

    async with Admin(bootstrap, client_id="ottla-pipeline", security=client_security()) as admin:
        await admin.describe_topic(topic)


async def _create(bootstrap: str, names: list[str]) -> None:
    from ottla.client import Admin
    from ottla.client.errors import TopicExistsError

    async with Admin(bootstrap, client_id="ottla-pipeline", security=client_security()) as admin:
        for name in names:
            try:
                await admin.create_topic(name)
            except TopicExistsError:
                continue
            say(f"created topic {name}")


def end_between_batches(query: StreamingQuery) -> None:
    """Stops a query between batches, or after a timeout."""
    deadline_s = time.monotonic() + BATCH_PATIENCE_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
        time.sleep(POLL_S / 10)
    query.stop()


def watch(queries: list[StreamingQuery], stop: StopRequest) -> None:
    """Reports the progress of queries until all have ended or a stop is requested. Raises the failure of a query."""
    seen: dict[str, int] = {}
    while not stop.is_wanted:
        active = [query.isActive for query in queries]
        for query in queries:
            progress = query.lastProgress
            if progress is not None and progress.batchId != seen.get(query.name):
                seen[query.name] = progress.batchId
                say(
                    f"{query.name}: batch {progress.batchId}  {count_text(progress.numInputRows, 'row')}  "
                    f"{progress.processedRowsPerSecond or 0:,.0f} rows/s  {progress.batchDuration / 1000:.2f} s"
                )
            failure = query.exception()
            if failure is not None:
                raise failure
        if not any(active):
            return
        stop.wait(POLL_S)


def _totals(query: StreamingQuery) -> tuple[str, int]:
    recent = query.recentProgress
    return f"{sum(each.numInputRows for each in recent):,}", len(recent)
