"""The virtual-time loop: asyncio's semantics, in order, deterministic, and failing on unhandled errors."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ottla.sim.hosts import SimHost
from ottla.sim.world import DeadlockError, SimulationError, SimWorld, UnhandledError, VirtualTimeoutError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(1) as world:
        yield world


def booted(world: SimWorld, name: str) -> SimHost:
    host = world.host(name)
    host.boot()
    return host


async def tick(host: SimHost, ticks: list[float]) -> None:
    while True:
        await asyncio.sleep(1)
        ticks.append(host.world.now_s)


# -- asyncio's primitives --------------------------------------------------------------------------------------------


def test_a_day_passes_in_a_few_events(world: SimWorld) -> None:
    world.run(asyncio.sleep(86_400), timeout_s=100_000)
    assert 86_400 <= world.now_s < 86_401
    assert world.event_count < 10


def test_timeouts_and_cancellation(world: SimWorld) -> None:
    ended: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            ended.append("finally")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stubborn(), 3)
        assert 3 <= loop.time() - begin_s < 3.01
        assert ended == ["cancelled", "finally"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await loop.create_future()
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        shielded = asyncio.shield(task)
        shielded.cancel()
        with pytest.raises(asyncio.CancelledError):
            await shielded
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert 5 <= loop.time() - begin_s < 5.01

    world.run(main())


def test_gather_and_task_groups(world: SimWorld) -> None:
    async def after(delay_s: float, value: int) -> int:
        await asyncio.sleep(delay_s)
        if value < 0:
            raise ValueError(value)
        return value

    async def main() -> None:
        assert list(await asyncio.gather(after(3, 1), after(1, 2), after(2, 3))) == [1, 2, 3]
        results = await asyncio.gather(after(1, -1), after(2, 5), return_exceptions=True)
        assert isinstance(results[0], ValueError)
        assert results[1] == 5
        slow: list[asyncio.Task[int]] = []

        async def in_a_group() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(after(1, -1))
                slow.append(group.create_task(after(50, 1)))

        with pytest.raises(ExceptionGroup):
            await in_a_group()
        assert slow[0].cancelled()
        done, pending = await asyncio.wait(
            [asyncio.create_task(after(1, 1)), asyncio.create_task(after(9, 9))], timeout=5
        )
        assert (len(done), len(pending)) == (1, 1)
        await asyncio.gather(*pending)

    world.run(main())
    assert 15 <= world.now_s < 15.1


def test_locks_queues_events_and_conditions(world: SimWorld) -> None:
    order: list[str] = []

    async def locked(lock: asyncio.Lock, name: str) -> None:
        async with lock:
            order.append(name)
            await asyncio.sleep(1)

    async def main() -> None:
        lock, queue, event = asyncio.Lock(), asyncio.Queue[int](maxsize=2), asyncio.Event()
        tasks = [asyncio.create_task(locked(lock, name)) for name in "abc"]

        async def fill() -> None:
            for number in range(5):
                await queue.put(number)
            event.set()

        filling = asyncio.create_task(fill())
        assert not event.is_set()
        assert [await queue.get() for _ in range(5)] == list(range(5))
        await event.wait()
        await asyncio.gather(filling, *tasks)

    world.run(main())
    assert order == ["a", "b", "c"]
    assert 3 <= world.now_s < 3.1


def test_a_generator_that_was_left_early_is_closed(world: SimWorld) -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(1)
            closed.append(True)

    async def main() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(2)

    world.run(main())
    assert closed == [True]


# -- order -----------------------------------------------------------------------------------------------------------


def test_callbacks_of_a_host_keep_their_order_and_timers_theirs(world: SimWorld) -> None:
    host = booted(world, "a")
    ran: list[object] = []
    times: list[float] = []
    rng = random.Random(5)

    def note_lateness(due_s: float) -> None:
        times.append(host.loop.time() - due_s)

    for number in range(50):
        host.loop.call_soon(ran.append, number)
    for delay_ms in rng.sample(range(1, 2000), 300):
        due_s = host.loop.time() + delay_ms / 1000
        host.loop.call_at(due_s, note_lateness, due_s)
        host.loop.call_at(due_s, ran.append, delay_ms + 100)
    cancelled = host.loop.call_later(0.5, ran.append, "never")
    cancelled.cancel()
    world.run_for(3)
    assert ran[:50] == list(range(50))
    assert ran[50:] == sorted(number for number in ran[50:] if isinstance(number, int))
    assert len(ran) == 350
    assert all(-1e-9 <= late_s < 0.01 for late_s in times)


def test_timers_of_one_moment_keep_their_order(world: SimWorld) -> None:
    """A real clock advances between two calls, so the first call's timer is always due first."""
    host = booted(world, "a")
    ran: list[int] = []
    for number in range(20):
        host.loop.call_at(host.loop.time() + 1, ran.append, number)
    world.run_for(2)
    assert ran == list(range(20))


def test_the_seed_orders_hosts_at_one_moment() -> None:
    def order(seed: int) -> list[str]:
        ran: list[str] = []
        with SimWorld(seed) as world:
            for name in "abcdef":
                booted(world, name).loop.call_soon(ran.append, name)
            world.run_for(1)
        return ran

    assert sorted(order(1)) == list("abcdef")
    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 3


def test_many_cancelled_timers_do_not_stay(world: SimWorld) -> None:
    host = booted(world, "a")
    for _ in range(10_000):
        host.loop.call_later(1e6, print).cancel()
    assert len(host.loop._timers) < 1000


# -- unhandled errors ------------------------------------------------------------------------------------------------


def test_an_exception_in_a_callback_ends_the_run(world: SimWorld) -> None:
    host = booted(world, "wobbly")
    host.loop.call_later(1, lambda: 1 / 0)
    with pytest.raises(UnhandledError, match=r"seed 1: at 1\.0.* on wobbly: .*ZeroDivisionError") as failure:
        world.run_for(5)
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


async def fails() -> None:
    await asyncio.sleep(1)
    raise LookupError("nobody looks")


def test_a_spawned_task_that_fails_ends_the_run(world: SimWorld) -> None:
    booted(world, "a").spawn(fails(), name="worker")
    with pytest.raises(UnhandledError, match="the task worker failed: LookupError: nobody looks"):
        world.run_for(5)


def test_a_task_that_fails_unseen_ends_the_run() -> None:
    async def main() -> None:
        task = asyncio.create_task(fails())
        cycle = [task]
        cycle.append(cycle)  # type: ignore[arg-type] # only the garbage collector frees it
        await asyncio.sleep(2)

    with pytest.raises(UnhandledError, match="never retrieved: LookupError"), SimWorld(1) as world:
        world.run(main())


def test_a_pending_task_that_nobody_holds_is_found() -> None:
    async def main() -> None:
        async def waits() -> None:
            await asyncio.get_running_loop().create_future()

        asyncio.create_task(waits())  # noqa: RUF006 - the fault that is tested
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="destroyed but it is pending"), SimWorld(1) as world:
        world.run(main())


def test_a_deadlock_names_what_waits(world: SimWorld) -> None:
    async def waits_for_nobody() -> None:
        await asyncio.get_running_loop().create_future()

    booted(world, "other").spawn(waits_for_nobody(), name="other's")
    with pytest.raises(DeadlockError) as deadlock:
        world.run(waits_for_nobody())
    text = str(deadlock.value)
    assert "other: other's in " in text
    assert "waits_for_nobody" in text
    assert "test_sim_loop.py:" in text
    assert "driver: driver" in text


def test_what_takes_too_long_names_what_waits(world: SimWorld) -> None:
    never = asyncio.Event()

    async def waits() -> None:
        await never.wait()

    host = booted(world, "a")
    host.spawn(tick(host, []))
    with pytest.raises(VirtualTimeoutError, match=r"not within 50 s(.|\n)*driver in .*waits > Event.wait"):
        world.run(waits(), timeout_s=50)


def test_a_busy_loop_does_not_stop_the_clock(world: SimWorld) -> None:
    host = booted(world, "a")
    turns: list[float] = []

    def spin() -> None:
        turns.append(world.now_s)
        host.loop.call_soon(spin)

    host.loop.call_soon(spin)
    world.run_for(0.01)
    assert len(turns) > 100
    assert turns == sorted(set(turns))


async def test_a_world_is_not_driven_by_a_coroutine() -> None:
    with SimWorld(1) as world:
        booted(world, "a").loop.call_soon(print)
        with pytest.raises(SimulationError, match="plain code"):
            world.run_for(1)


def test_threads_have_no_place(world: SimWorld) -> None:
    with pytest.raises(NotImplementedError):
        world.run(asyncio.to_thread(print))


# -- determinism -----------------------------------------------------------------------------------------------------


def noisy_world(seed: int) -> str:
    """Tasks that sleep, wait for one another and draw random numbers. Returns the whole trace."""
    with SimWorld(seed, keep_trace=True) as world:

        async def work(host: SimHost) -> None:
            queue: asyncio.Queue[float] = asyncio.Queue()

            async def put() -> None:
                for _ in range(20):
                    await asyncio.sleep(random.random())
                    await queue.put(random.random())

            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(put())
                for _ in range(60):
                    host.world.note(f"{host.name} got {await queue.get()} at {host.clock.now_ms()}")

        for name in ("a", "b", "c"):
            world.host(name, program=work)
        world.boot_all()
        world.run_for(30)
        return world.trace.text


def test_one_seed_is_one_trace_and_another_is_another() -> None:
    assert noisy_world(1) == noisy_world(1)
    assert noisy_world(1) != noisy_world(2)


def test_another_process_with_other_hashes_has_the_same_trace() -> None:
    script = "from tests.unit.sim.test_sim_loop import noisy_world; print(noisy_world(7), end='')"
    traces = [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1] == noisy_world(7)
    assert traces[0].count("got") == 180
