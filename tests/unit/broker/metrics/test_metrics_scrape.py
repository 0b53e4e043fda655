"""A page is rendered while the broker works: in slices, with current values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.broker.api.request_handler import BrokerRequestHandler
from ottla.broker.metrics import slices
from ottla.broker.metrics.coordination import MeteredCoordination
from ottla.broker.metrics.group_metrics import GroupLags
from ottla.broker.metrics.hanging_transactions import HangingTransactions
from ottla.broker.metrics.loop_delay import INTERVAL_MS, LoopDelay
from ottla.broker.metrics.scrape import scrape
from ottla.broker.metrics.scrape_target import ScrapeTarget
from ottla.broker.server.server import Server
from ottla.coordination.port import OutcomeUnknownError, UnavailableError
from ottla.sim.clock import SimClock, SimTimer
from tests.support.handlers_caller import Caller, calling
from tests.support.metrics_reading import Scraped


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[Caller, ScrapeTarget, tuple[str, int]]]:
    async with calling() as caller:
        broker = caller.broker
        server = Server(BrokerRequestHandler(broker), broker.config)
        address = await server.start("127.0.0.1", 0)
        lags, hanging = GroupLags(broker), HangingTransactions(broker)
        yield caller, ScrapeTarget(broker, server, lags, hanging, LoopDelay(broker.clock), 0), address
        await server.stop(0)


async def page_of(watched: ScrapeTarget) -> Scraped:
    return Scraped(b"".join(await scrape(watched)).decode())


async def test_a_long_page_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    async with watching() as (caller, watched, _):
        await caller.create_topic("t", 300)
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        others = asyncio.ensure_future(take_turns())
        page = await page_of(watched)
        others.cancel()
        assert page.sum("ottla_partition_is_leader") == 300
        assert turns >= 300


async def test_topics_come_and_go_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    async with watching() as (caller, watched, _):
        for number in range(20):
            await caller.create_topic(f"t{number:02}", 5)
        making = asyncio.ensure_future(page_of(watched))
        for number in range(20, 0, -2):
            topic = caller.broker.topics.get(f"t{number - 1:02}")
            assert topic is not None
            await caller.broker.metadata.admin.delete_topic(topic)
            await caller.create_topic(f"new{number}", 2)
        assert (await making).sum("ottla_partition_is_leader") >= 50
        assert (await page_of(watched)).value("ottla_topics") == 20


async def test_what_is_wrong_is_told() -> None:
    async with watching() as (caller, watched, _):
        topic = await caller.create_topic("t", 3)
        names = ("ottla_failed_logs", "ottla_disk_full", "ottla_journal_failed", "ottla_under_replicated_partitions")
        page = await page_of(watched)
        assert [page.value(name) for name in names] == [0, 0, 0, 0]
        shared = caller.broker.context.shared
        assert shared.reserve is not None
        assert shared.journal is not None
        topic.partitions[1].log.failed = shared.journal.failed = OSError("no disk")
        shared.reserve.is_held = False
        topic.partitions[2].placement.replicas = (1, 2)
        page = await page_of(watched)
        assert [page.value(name) for name in names] == [1, 1, 1, 1]
        topic.partitions[1].log.failed = shared.journal.failed = None
        shared.reserve.is_held = True


async def test_connections_and_requests_in_flight() -> None:
    async with watching() as (_, watched, address):
        assert (await page_of(watched)).value("ottla_connections") == 0
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"\x00\x00\x01\x00half a request")
        while not watched.server.buffered_bytes:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        page = await page_of(watched)
        assert page.value("ottla_connections") == page.value("ottla_connections_accepted_total") == 1
        assert page.value("ottla_request_memory_bytes") > 0
        assert page.value("ottla_backlog_bytes") == 0
        assert page.value("ottla_backlog_limit_bytes") > 0
        assert page.value("ottla_backlog_waits_total") == 0
        assert page.value("ottla_connections_refused_total") == 0
        writer.close()


class LateClock(SimClock):
    """The clock of a loop that is busy when a timer is due."""

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> SimTimer:
        return super().call_later(delay_ms + 40, callback)


@pytest.mark.parametrize(("clock", "late_s"), [(SimClock(), 0.0), (LateClock(), 0.04)])
def test_a_loop_that_is_late_is_told(clock: SimClock, late_s: float) -> None:
    delay = LoopDelay(clock)
    delay.start()
    clock.advance(2.5 * INTERVAL_MS)
    assert delay.late_s.count == 2
    assert delay.late_s.total == pytest.approx(2 * late_s)
    delay.stop()
    clock.advance(10 * INTERVAL_MS)
    assert delay.late_s.count == 2


class Store:
    """A minimal store that replies late or not at all."""

    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self.failure: Exception | None = None

    async def get(self, key: str) -> None:
        self.clock.advance(30)
        if self.failure is not None:
            raise self.failure


async def test_calls_of_the_coordination_store_are_timed_and_failures_counted() -> None:
    clock = SimClock()
    store: Any = Store(clock)
    metered = MeteredCoordination(store, clock)
    await metered.get("key")
    assert metered.answered_s["get"].count == 1
    assert metered.answered_s["get"].total == pytest.approx(0.03)
    for store.failure in (UnavailableError("gone"), OutcomeUnknownError("who knows"), UnavailableError("gone")):
        with pytest.raises(type(store.failure)):
            await metered.get("key")
    assert metered.answered_s["get"].count == 1
    assert (metered.failures["get", "unavailable"], metered.failures["get", "unknown"]) == (2, 1)
