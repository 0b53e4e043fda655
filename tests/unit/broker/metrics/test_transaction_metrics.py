"""The metrics of transactions: as their coordinator, and as the leader of their partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from ottla.broker.api.request_handler import BrokerRequestHandler
from ottla.broker.endpoints import Endpoint
from ottla.broker.metrics import admin_client as asking
from ottla.broker.metrics import hanging_transactions
from ottla.broker.metrics.group_metrics import GroupLags
from ottla.broker.metrics.hanging_transactions import HangingTransactions
from ottla.broker.metrics.loop_delay import LoopDelay
from ottla.broker.metrics.scrape import scrape
from ottla.broker.metrics.scrape_target import ScrapeTarget
from ottla.broker.server.server import Server
from ottla.machines.transactions.requests import AbortTransaction
from ottla.protocol.model.errors import ErrorCode
from tests.support.handlers_caller import Caller, calling
from tests.support.metrics_reading import Scraped
from tests.support.transactional_peer import Peer
from tests.unit.broker.api.test_transaction_handlers import add, added, end, init, until, until_loaded

NONE = ErrorCode.none
STATES = {"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"}
UNKNOWN_PRODUCER = 900_001


class Watching:
    def __init__(self, caller: Caller, watched: ScrapeTarget) -> None:
        self.caller = caller
        self._watched = watched
        self.peer = Peer(caller.send, "t", UUID(int=0), caller.broker.clock.now_ms)

    async def page(self) -> Scraped:
        return Scraped(b"".join(await scrape(self._watched)).decode())

    async def value(self, name: str, **labels: str) -> float:
        return (await self.page()).value(f"ottla_{name}", **labels)

    async def ended(self) -> dict[tuple[str, str], float]:
        """Returns the number of ended transactions by outcome and cause."""
        found = (await self.page()).matching("ottla_transactions_ended_total")
        return {(each.labels["outcome"], each.labels["cause"]): each.value for each in found if each.value}

    async def begin(self) -> tuple[int, int]:
        """Begins a transaction with a record in partition 0."""
        begun = await init(self.caller)
        producer = begun.producer_id, begun.producer_epoch
        assert added(await add(self.caller, producer)) == [NONE]
        assert (await self.peer.produce(b"x", producer=(*producer, 0), version=11)).error == NONE
        return producer

    async def until_complete(self) -> None:
        def is_complete() -> bool:
            return all(each.state.is_complete for each in self.caller.broker.transactions.known())

        await until(is_complete)


@asynccontextmanager
async def watching(**properties: str) -> AsyncIterator[Watching]:
    properties = {"transaction_state_log_num_partitions": "2", **properties}
    async with calling(**properties) as caller:
        broker = caller.broker
        server = Server(BrokerRequestHandler(broker), broker.config)
        broker.context.endpoints.clients = Endpoint(*await server.start("127.0.0.1", 0))
        await caller.create_topic("t", 2)
        await broker.transactions.coordinator_of("any")
        await broker.groups.coordinator_of("any")
        await until_loaded(caller)
        lags, hanging = GroupLags(broker), HangingTransactions(broker)
        yield Watching(caller, ScrapeTarget(broker, server, lags, hanging, LoopDelay(broker.clock), 0))
        await server.stop(0)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[Watching]:
    async with watching() as world:
        yield world


async def test_nothing_has_happened(world: Watching) -> None:
    page = await world.page()
    assert {each.labels["state"] for each in page.matching("ottla_transactions")} == STATES
    assert page.sum("ottla_transactions") == 0
    assert page.value("ottla_oldest_transaction_seconds") == 0
    assert page.value("ottla_hanging_transactions") == 0
    assert len(list(page.matching("ottla_transactions_ended_total"))) == 6, "told as 0 from the beginning"


async def test_an_open_transaction(world: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = await world.begin()
    assert await world.value("transactions", state="Ongoing") == 1
    assert await world.value("partition_last_stable_offset_lag", topic="t", partition="0") == 1
    clock, now_ms = world.caller.broker.clock, world.caller.broker.clock.now_ms
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms() + 40_000)
    assert 40 <= await world.value("oldest_transaction_seconds") < 600
    assert (await end(world.caller, producer)).error_code is NONE
    await world.until_complete()
    page = await world.page()
    assert page.value("ottla_transactions", state="Ongoing") == 0
    assert page.value("ottla_transactions", state="CompleteCommit") == 1
    assert page.value("ottla_oldest_transaction_seconds") == 0
    assert page.value("ottla_partition_last_stable_offset_lag", topic="t", partition="0") == 0


async def by_producer(world: Watching, producer: tuple[int, int]) -> None:
    assert (await end(world.caller, producer, commit=False)).error_code is NONE


async def by_another(world: Watching, producer: tuple[int, int]) -> None:
    assert (await init(world.caller)).error_code is ErrorCode.concurrent_transactions


async def by_itself(world: Watching, producer: tuple[int, int]) -> None:
    restarted = await init(world.caller, producer_id=producer[0], producer_epoch=producer[1])
    assert restarted.error_code is ErrorCode.concurrent_transactions


async def by_operator(world: Watching, producer: tuple[int, int]) -> None:
    reply = await world.caller.broker.transactions.ask(AbortTransaction(transactional_id="tx"), "tx")
    assert reply.error is NONE


@pytest.mark.parametrize(
    ("abort", "cause"),
    [(by_producer, "producer"), (by_another, "new_producer"), (by_itself, "restart"), (by_operator, "operator")],
)
async def test_who_ended_it(world: Watching, abort: Callable[[Watching, tuple[int, int]], Any], cause: str) -> None:
    await abort(world, await world.begin())
    await world.until_complete()
    assert await world.ended() == {("abort", cause): 1}


async def test_a_commit_and_a_timeout(world: Watching) -> None:
    assert (await end(world.caller, await world.begin())).error_code is NONE
    await world.until_complete()
    begun = await init(world.caller, transaction_timeout=timedelta(milliseconds=10))
    assert added(await add(world.caller, (begun.producer_id, begun.producer_epoch))) == [NONE]
    await world.until_complete()
    assert await world.ended() == {("commit", "producer"): 1, ("abort", "timeout"): 1}


# -- hanging transactions --------------------------------------------------------------------------------------------


async def hang(world: Watching) -> None:
    written = await world.peer.produce(b"x", producer=(UNKNOWN_PRODUCER, 0, 0), version=9)
    assert written.error == NONE


async def test_what_hangs_is_asked_about_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(transaction_partition_verification_enable="false") as world:
        await hang(world)
        await world.begin()
        assert await world.value("hanging_transactions") == 0, "too young to be asked about"
        monkeypatch.setattr(hanging_transactions, "ASKED_ABOUT_AFTER_MS", 0)
        assert await world.value("hanging_transactions") == 1, "the other one has a coordinator"
        assert await world.peer.end((UNKNOWN_PRODUCER, 0), commit=False) == [NONE]
        assert await world.value("hanging_transactions") == 0


async def test_it_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging_transactions, "ASKED_ABOUT_AFTER_MS", 0)
    monkeypatch.setattr(asking, "ASKING_TIMEOUT_S", 0.2)
    async with watching(transaction_partition_verification_enable="false") as world:
        await hang(world)
        world.caller.broker.context.endpoints.clients = Endpoint("127.0.0.1", 1)
        assert list((await world.page()).matching("ottla_hanging_transactions")) == []
