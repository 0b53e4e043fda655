"""Connectors on a test's event loop: the code of their processes, without the processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from ottla.connect.configuration import ConnectorConfig
from ottla.connect.contract import Follower, Source
from ottla.connect.sink_run import run_sink
from ottla.connect.source_run import run_source


@asynccontextmanager
async def running_source(
    bootstrap: str, name: str, url: str, tables: list[str], **settings: Any
) -> AsyncIterator[None]:
    """Streams inside the context; its slot is free for another connector afterwards."""
    config = ConnectorConfig(
        name, "postgres-cdc", bootstrap, {"url": url, "tables": tables, "prefix": name, **settings}
    )
    source = config.build()
    assert isinstance(source, Source)
    stopping, streams = asyncio.Event(), asyncio.Event()

    def report(facts: dict[str, Any]) -> None:
        if facts["phase"] == "stream":
            streams.set()

    running = asyncio.create_task(run_source(name, bootstrap, source, stopping, report))
    waiting = asyncio.create_task(streams.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if running.done():
        running.result()
    try:
        yield
    finally:
        stopping.set()
        await running
        await until(lambda: not rows(url, "SELECT 1 FROM pg_replication_slots WHERE active"))  # the server may be slow


async def run_sink_to_end(bootstrap: str, kind: str, name: str, **settings: Any) -> dict[str, Any]:
    """Runs until it has everything from the topics; returns its final status."""
    config = ConnectorConfig(name, kind, bootstrap, {"until_end": True, **settings})
    sink = config.build()
    assert not isinstance(sink, Source | Follower)
    said: dict[str, Any] = {}
    await run_sink(config, sink, asyncio.Event(), said.update)
    return said


def execute(url: str, *commands: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for command in commands:
            connection.execute(command.encode())


def rows(url: str, question: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(question.encode()).fetchall()


async def confirmed(url: str) -> None:
    """Waits until the slots of this database have confirmed all its changes."""
    end = rows(url, "SELECT pg_current_wal_lsn()::text")[0][0]

    def is_there() -> bool:
        question = (
            f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE database = current_database()"
        )
        found = [each for (each,) in rows(url, question)]
        return bool(found) and all(found)  # without a slot no connector has started yet

    await until(is_there)


async def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - the condition is in a database
            await asyncio.sleep(0.05)
