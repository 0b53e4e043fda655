"""The simulated coordination store fails in each of its documented ways, deterministically for a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from ottla.coordination.port import (
    Batch,
    Committed,
    Condition,
    Conflict,
    Coordination,
    HasVersion,
    IsAbsent,
    Outcome,
    OutcomeUnknownError,
    Put,
    Resync,
    Revision,
    UnavailableError,
)
from ottla.sim.clock import SimClock
from ottla.sim.coordination import LATE_MS_MAX, SimCoordination, SimCoordinationClient

T = TypeVar("T")
TURNS_MAX = 100_000


class Bench:
    """A store and clients, each with its own clock. That of a paused process is not in `running`."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = SimClock()
        self.running = [self.clock]
        self.store = SimCoordination(self.clock, seed=seed)

    def client(self, name: str = "client") -> SimCoordinationClient:
        clock = SimClock()
        self.running.append(clock)
        return self.store.client(clock, name=name)

    async def settle(self, ms: float = 100.0) -> None:
        """Advances time by that much."""
        steps = min(int(ms), 100)
        for _ in range(steps):
            for clock in self.running:
                clock.advance(ms / steps)
            for _ in range(5):
                await asyncio.sleep(0)

    async def until(self, awaitable: Awaitable[T]) -> T:
        task = asyncio.ensure_future(awaitable)
        for _ in range(TURNS_MAX):
            await self.settle(1)
            if task.done():
                return task.result()
        raise TimeoutError("it does not end")

    def pause(self, client: SimCoordinationClient) -> None:
        assert isinstance(client.clock, SimClock)
        self.running.remove(client.clock)

    def resume(self, client: SimCoordinationClient) -> None:
        assert isinstance(client.clock, SimClock)
        client.clock.advance(self.clock.monotonic_ms() - client.clock.monotonic_ms())
        self.running.append(client.clock)


async def outcome_of(awaitable: Awaitable[Outcome]) -> Outcome | str:
    try:
        return await awaitable
    except (OutcomeUnknownError, UnavailableError) as error:
        return type(error).__name__


async def test_an_unknown_outcome_is_one_of_three() -> None:
    """Applied, not applied, or applied after a read that did not see it."""
    kinds = set()
    for seed in range(30):
        bench = Bench(seed)
        client = bench.client()
        bench.store.faults.break_share = 1.0
        with pytest.raises(OutcomeUnknownError):
            await bench.until(client.commit([], [Put("key", b"value")]))
        bench.store.faults.break_share = 0.0
        soon = await bench.until(client.get("key"))
        await bench.settle(LATE_MS_MAX)
        late = await bench.until(client.get("key"))
        kinds.add((soon is not None, late is not None))
    assert kinds == {(True, True), (False, False), (False, True)}


async def test_no_increment_is_lost_or_doubled_if_unknown_outcomes_are_settled() -> None:
    """After an unknown outcome, retry with the same conditions and check who wrote the current value."""
    bench = Bench(7)
    clients = [bench.client(f"client-{number}") for number in range(3)]
    bench.store.faults.break_share = 0.4
    bench.store.faults.delay_ms = (0.1, 10.0)
    turns = [f"{client.name} {turn}" for client in clients for turn in range(15)]

    async def work(client: SimCoordinationClient) -> None:
        for turn in [turn for turn in turns if turn.startswith(client.name)]:
            await append_once(client, turn)

    await bench.until(asyncio.gather(*(work(client) for client in clients)))
    await bench.settle(LATE_MS_MAX)
    entry = bench.store.get("list")
    assert entry is not None
    assert sorted(entry.value.decode().split(",")) == sorted(turns)


async def append_once(client: Coordination, word: str) -> None:
    while True:
        try:
            entry = await client.get("list")
            words = entry.value.decode().split(",") if entry else []
            if word in words:
                return
            condition: Condition = HasVersion("list", entry.version) if entry else IsAbsent("list")
            await client.commit([condition], [Put("list", ",".join([*words, word]).encode())])
        except (OutcomeUnknownError, UnavailableError):
            continue  # the next attempt has the same condition or finds the word, so only one can be applied


async def test_a_client_that_is_cut_off_gets_no_further() -> None:
    seen = set()
    for seed in range(8):
        bench = Bench(seed)
        client, other = bench.client("cut off"), bench.client("other")
        bench.store.cut_off(client)
        seen.add(await bench.until(outcome_of(client.commit([], [Put("key", b"value")]))))
        with pytest.raises(UnavailableError):
            await bench.until(client.get("key"))
        assert await bench.until(other.get("key")) is None
        bench.store.reconnect(client)
        assert isinstance(await bench.until(client.commit([IsAbsent("key")], [Put("key", b"value")])), Committed)
    assert seen == {"UnavailableError", "OutcomeUnknownError"}


async def test_a_stopped_store_keeps_what_it_has() -> None:
    bench = Bench()
    client = bench.client()
    await bench.until(client.commit([], [Put("key", b"value")]))
    bench.store.stop()
    with pytest.raises(UnavailableError):
        await bench.until(client.snapshot())
    bench.store.start()
    assert (await bench.until(client.snapshot())).entries == bench.store.snapshot().entries
    assert bench.store.get("key") is not None


async def test_an_outage_costs_the_lease() -> None:
    bench = Bench()
    client = bench.client()
    lease = await bench.until(client.open_lease(1000))
    await bench.until(client.commit([], [Put("mine", b"value", lease.id)]))
    bench.store.cut_off(client)
    with pytest.raises(UnavailableError):
        await bench.until(lease.renew())
    assert not lease.lost, "nobody said so yet"
    await bench.settle(2000)
    assert not lease.is_alive(client.clock.monotonic_ms())
    assert bench.store.get("mine") is None
    bench.store.reconnect(client)
    assert await bench.until(lease.renew()) is False
    assert lease.lost


async def test_a_deadline_counts_from_before_the_request_was_sent() -> None:
    bench = Bench()
    bench.store.faults.delay_ms = (200.0, 200.0)
    client = bench.client()
    lease = await bench.until(client.open_lease(1000))
    assert client.clock.monotonic_ms() >= 400
    assert lease.deadline_ms < 1100
    renewed_ms = client.clock.monotonic_ms()
    assert await bench.until(lease.renew())
    assert renewed_ms + 1000 <= lease.deadline_ms < renewed_ms + 1100
    deadline_ms = lease.deadline_ms
    bench.store.cut_off(client)
    with pytest.raises(UnavailableError):
        await bench.until(lease.renew())
    assert lease.deadline_ms == deadline_ms, "a renewal that failed moves nothing"


async def test_a_paused_owner_loses_its_lease_and_hears_of_it_later() -> None:
    bench = Bench()
    owner, other = bench.client("owner"), bench.client("other")
    lease = await bench.until(owner.open_lease(1000))
    await bench.until(owner.commit([], [Put("mine", b"value", lease.id)]))
    found: list[Batch | Resync] = []
    reading = asyncio.create_task(collect(owner, found))
    await bench.settle(10)
    bench.pause(owner)
    renewal = asyncio.create_task(lease.renew())
    await bench.settle(3000)
    assert await bench.until(other.get("mine")) is None
    assert found == []
    assert not renewal.done()
    bench.resume(owner)
    await bench.settle(10)
    assert renewal.done()
    assert not lease.is_alive(owner.clock.monotonic_ms())
    assert len(found) == 1
    reading.cancel()


async def collect(client: Coordination, found: list[Batch | Resync], after: int = 1) -> None:
    async for one in client.watch("", Revision(after)):
        found.append(one)  # noqa: PERF401  # a comprehension would show them only at the end


@pytest.mark.parametrize("at_once", [True, False])
async def test_the_leases_of_a_killed_process(at_once: bool) -> None:
    bench = Bench()
    owner, other = bench.client("owner"), bench.client("other")
    lease = await bench.until(owner.open_lease(1000))
    await bench.until(owner.commit([], [Put("mine", b"value", lease.id)]))
    owner.die(ends_leases=at_once)
    assert (await bench.until(other.get("mine")) is None) == at_once
    await bench.settle(1000)
    assert await bench.until(other.get("mine")) is None


async def test_a_lease_can_be_lost_without_a_reason() -> None:
    bench = Bench()
    owner = bench.client()
    lease = await bench.until(owner.open_lease(60_000))
    await bench.until(owner.commit([], [Put("mine", b"value", lease.id)]))
    bench.store.lose_lease(lease.id)
    assert await bench.until(owner.get("mine")) is None
    assert await bench.until(lease.renew()) is False


async def test_expiry_may_be_late_but_not_early() -> None:
    seen_ms = []
    for seed in range(10):
        bench = Bench(seed)
        bench.store.faults.expiry_slack_ms = 500
        owner = bench.client()
        lease = await bench.until(owner.open_lease(1000))
        await bench.until(owner.commit([], [Put("mine", b"value", lease.id)]))
        while bench.store.get("mine") is not None:
            await bench.settle(1)
        seen_ms.append(bench.clock.monotonic_ms() - lease.deadline_ms)
    assert min(seen_ms) >= 0
    assert 100 < max(seen_ms) < 510


@pytest.mark.parametrize("fault", [SimCoordination.forget_history, SimCoordination.break_watches])
async def test_a_watch_that_cannot_go_on_says_so(fault: Callable[[SimCoordination], None]) -> None:
    bench = Bench()
    client = bench.client()
    found: list[Batch | Resync] = []
    reading = asyncio.create_task(collect(client, found, after=0))
    await bench.settle(10)
    bench.store.faults.watch_lag_ms = (200.0, 200.0)
    await bench.until(client.commit([], [Put("key", b"1")]))
    fault(bench.store)
    await bench.settle(300)
    assert found == [Resync()]
    assert reading.done()


async def test_a_watch_goes_on_after_an_outage() -> None:
    bench = Bench()
    client, writer = bench.client("reader"), bench.client("writer")
    found: list[Batch | Resync] = []
    reading = asyncio.create_task(collect(client, found, after=0))
    await bench.settle(10)
    bench.store.cut_off(client)
    for number in range(5):
        await bench.until(writer.commit([], [Put("key", b"%d" % number)]))
    await bench.settle(1000)
    assert found == []
    bench.store.reconnect(client)
    await bench.settle(100)
    assert [one.revision for one in found if isinstance(one, Batch)] == [1, 2, 3, 4, 5]
    reading.cancel()


async def test_one_seed_is_one_history() -> None:
    async def history(seed: int) -> list[object]:
        bench = Bench(seed)
        clients = [bench.client(str(number)) for number in range(3)]
        bench.store.faults.break_share = 0.3
        bench.store.faults.delay_ms = (0.1, 30.0)
        events: list[object] = []

        async def work(client: SimCoordinationClient) -> None:
            for turn in range(20):
                outcome = await outcome_of(client.commit([], [Put(client.name, b"%d" % turn)]))
                events.append((client.name, turn, str(outcome), bench.clock.monotonic_ms()))

        await bench.until(asyncio.gather(*(work(client) for client in clients)))
        return events

    assert await history(5) == await history(5)
    assert await history(5) != await history(6)


async def test_a_conflict_after_an_unknown_outcome_shows_the_own_write() -> None:
    bench = Bench()
    client = bench.client()
    bench.store.commit([], [Put("key", b"mine")])
    assert await bench.until(client.commit([IsAbsent("key")], [Put("key", b"mine")])) == Conflict(
        {"key": bench.store.get("key")}
    )
