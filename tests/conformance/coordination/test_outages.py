"""Connections to etcd and ZooKeeper that break, hang and recover."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar
from uuid import uuid4

import pytest

from ottla.coordination.port import (
    Committed,
    Coordination,
    IsAbsent,
    Outcome,
    OutcomeUnknownError,
    Put,
    UnavailableError,
)
from tests.conformance.coordination.appending import KEY, Appender, Ledger, check_watched, until_committed
from tests.conformance.coordination.gate import Gate
from tests.conformance.coordination.reading import TIMEOUT_S, reader_of
from tests.conformance.coordination.stores import Place

T = TypeVar("T")
KINDS = ("etcd", "zookeeper")
TTL_MS = 1000
IMPATIENT_MS = 400
CUTS_MAX = 100


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.param, request.getfixturevalue(request.param).address, uuid4().hex)


@pytest.fixture
async def direct(place: Place) -> AsyncIterator[Coordination]:
    """A client with a direct connection."""
    client = await place.client()
    yield client
    await client.close()


async def test_what_passes_through_breaking_connections_is_neither_lost_nor_done_twice(
    place: Place, direct: Coordination, seed: int
) -> None:
    ledger = Ledger()
    chosen = random.Random(seed)
    async with Gate(place.where) as gate:
        shaky = [await place._replace(where=gate.address).client() for _ in range(2)]
        async with reader_of(shaky[0], KEY) as reader:
            appenders = [Appender(client, f"client-{number}", ledger) for number, client in enumerate(shaky)]
            cuts = 0
            while cuts < 8 or not ledger.unknown:
                assert cuts < CUTS_MAX, "no commit was ever on its way when the connection broke"
                await until_committed(ledger, chosen.randint(1, 3))
                await asyncio.sleep(chosen.random() * 0.005)
                await gate.cut()
                cuts += 1
            for appender in appenders:
                await appender.stop()
            entry = await direct.get(KEY)
            assert entry is not None
            await reader.until_revision(entry.version)
        for client in shaky:
            await client.close()
    ledger.check(entry)
    check_watched(reader.batches, entry)


async def test_a_client_without_a_connection_says_that_nothing_happened(place: Place, direct: Coordination) -> None:
    async with Gate(place.where) as gate:
        client = await place._replace(where=gate.address).client(request_timeout_ms=IMPATIENT_MS)
        await gate.shut()
        await until_disconnected(client)
        with pytest.raises(UnavailableError):
            await client.commit([IsAbsent("key")], [Put("key", b"value")])
        assert await direct.get("key") is None
        gate.open()
        assert isinstance(await settled_put(client, "key", b"value"), Committed)
        await client.close()


async def until_disconnected(client: Coordination) -> None:
    while True:
        try:
            await client.get("key")
        except UnavailableError:
            return


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Retries until there is a connection again."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await call()
            except UnavailableError:
                continue


async def settled_put(client: Coordination, key: str, value: bytes) -> Outcome:
    """Repeats a commit under the same condition, so that an earlier attempt is applied before it or never."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await client.commit([IsAbsent(key)], [Put(key, value)])
            except (UnavailableError, OutcomeUnknownError):
                continue


async def test_no_answer_is_an_unknown_outcome_once_the_commit_was_sent(place: Place, direct: Coordination) -> None:
    """etcd gets the commit as one request. ZooKeeper is first asked for the current value: without a reply to that,
    nothing was sent yet."""
    async with Gate(place.where) as gate:
        client = await place._replace(where=gate.address).client(request_timeout_ms=IMPATIENT_MS)
        gate.hold()
        with pytest.raises(OutcomeUnknownError if place.kind == "etcd" else UnavailableError):
            await client.commit([IsAbsent("key")], [Put("key", b"value")])
        gate.open()
        outcome = await settled_put(client, "key", b"another value")
        entry = await direct.get("key")
        assert entry is not None
        if place.kind == "zookeeper" or isinstance(outcome, Committed):
            assert entry.value == b"another value", "whichever is later, only one of the two is applied"
        else:
            assert entry.value == b"value"
        await client.close()


async def test_a_lease_is_lost_during_an_outage(place: Place, direct: Coordination) -> None:
    async with Gate(place.where) as gate:
        owner = await place._replace(where=gate.address).client(request_timeout_ms=IMPATIENT_MS)
        lease = await owner.open_lease(TTL_MS)
        await owner.commit([], [Put("mine", b"value", lease.id)])
        async with reader_of(direct) as reader:
            await gate.shut()
            while not reader.deleted_keys():
                with pytest.raises(UnavailableError):
                    await lease.renew()
            assert not lease.lost, "nobody could say so"
        gate.open()
        async with asyncio.timeout(TIMEOUT_S):
            while not lease.lost:
                try:
                    assert await lease.renew() is False
                except UnavailableError:
                    continue
        again = await patiently(lambda: owner.open_lease(TTL_MS))
        assert isinstance(await owner.commit([IsAbsent("mine")], [Put("mine", b"again", again.id)]), Committed)
        await owner.close()


async def test_a_watch_goes_on_where_it_was(place: Place, direct: Coordination) -> None:
    async with Gate(place.where) as gate:
        watcher = await place._replace(where=gate.address).client()
        async with reader_of(watcher, KEY) as reader:
            ledger = Ledger()
            appender = Appender(direct, "direct", ledger)
            for _ in range(3):
                await until_committed(ledger, 5)
                await gate.shut()
                await until_committed(ledger, 5)
                gate.open()
            await appender.stop()
            entry = await direct.get(KEY)
            assert entry is not None
            await reader.until_revision(entry.version)
        await watcher.close()
    check_watched(reader.batches, entry)
