"""Simulated hosts: each has a clock and one process at a time that can be paused, killed and restarted."""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import Iterator
from functools import partial

import pytest

from ottla.ports import Clock
from ottla.sim.hosts import WALL_START_S, SimHost
from ottla.sim.world import SimWorld


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(1) as world:
        yield world


def booted(world: SimWorld, name: str, *, skew_ms: float = 0, drift_ppm: float = 0) -> SimHost:
    host = world.host(name, skew_ms=skew_ms, drift_ppm=drift_ppm)
    host.boot()
    return host


# -- clocks ----------------------------------------------------------------------------------------------------------


def test_each_host_has_its_own_clock(world: SimWorld) -> None:
    exact, skewed, fast = (
        booted(world, "exact"),
        booted(world, "skewed", skew_ms=-700),
        booted(world, "fast", drift_ppm=100_000),
    )
    port: Clock = exact.clock
    begin_ms = port.monotonic_ms()
    fired: dict[str, float] = {}

    def note(name: str) -> None:
        fired[name] = world.now_s

    for host in (exact, skewed, fast):
        host.clock.call_later(10_000, partial(note, host.name))
    world.run_for(20)
    assert port.now_ms() == WALL_START_S * 1000 + 20_000
    assert port.monotonic_ms() - begin_ms == pytest.approx(20_000)
    assert skewed.clock.now_ms() == port.now_ms() - 700
    assert fast.clock.now_ms() == port.now_ms() + 2000
    assert fired == {"exact": pytest.approx(10), "skewed": pytest.approx(10), "fast": pytest.approx(10 / 1.1)}
    assert len({round(host.monotonic_s()) for host in (exact, skewed, fast)}) == 3
    monotonic_ms = exact.clock.monotonic_ms()
    exact.step_wall_clock(-5000)
    assert exact.clock.now_ms() == WALL_START_S * 1000 + 15_000
    assert exact.clock.monotonic_ms() == monotonic_ms


def test_what_belongs_to_no_host_has_a_clock_too(world: SimWorld) -> None:
    port: Clock = world.clock
    fired: list[float] = []
    host = booted(world, "a")
    host.pause()
    port.call_later(2000, lambda: fired.append(port.monotonic_ms()))
    port.call_soon(lambda: fired.append(port.monotonic_ms()))
    port.call_later(1000, lambda: fired.append(-1)).cancel()
    world.run_for(5)
    assert fired == [0, 2000]
    assert port.now_ms() == host.clock.now_ms() == WALL_START_S * 1000 + 5000


def test_a_drift_that_begins_moves_timers_that_wait(world: SimWorld) -> None:
    host = booted(world, "a")
    fired: list[float] = []
    host.clock.call_later(10_000, lambda: fired.append(world.now_s))
    world.run_for(5)
    host.set_drift(1_000_000)
    world.run_for(5)
    assert fired == [pytest.approx(7.5)]


def test_time_and_chance_of_the_process_are_virtual() -> None:
    def taken(seed: int) -> list[object]:
        found: list[object] = []

        def look() -> None:
            found.extend([time.time(), time.time_ns(), time.monotonic(), random.random(), random.Random().random()])
            found.extend([uuid.uuid4(), os.urandom(8)])

        with SimWorld(seed) as world:
            booted(world, "a", skew_ms=250).loop.call_later(5, look)
            world.run_for(6)
        return found

    first = taken(3)
    assert first == taken(3)
    assert first[0] == pytest.approx(WALL_START_S + 5.25)
    assert not set(map(repr, first)) & set(map(repr, taken(4)[2:]))
    assert time.time() > WALL_START_S + 1e6
    assert random.Random is type(random.Random(1))
    assert uuid.uuid4() != uuid.uuid4()


# -- pause and crash -------------------------------------------------------------------------------------------------


async def tick(host: SimHost, ticks: list[float]) -> None:
    while True:
        await asyncio.sleep(1)
        ticks.append(host.world.now_s)


def test_a_paused_host_stands_still_while_others_go_on(world: SimWorld) -> None:
    ticks: dict[str, list[float]] = {"a": [], "b": []}
    for name, seen in ticks.items():
        host = booted(world, name)
        host.spawn(tick(host, seen))
    world.run_for(3.5)
    a = world.hosts["a"]
    a.pause()
    assert a.is_paused
    a.loop.call_soon(ticks["a"].append, -1.0)
    world.run_for(10)
    assert len(ticks["a"]) == 3
    assert len(ticks["b"]) == 13
    a.resume()
    world.run_for(0.001)
    assert ticks["a"][3:] == [-1.0, pytest.approx(13.5)]
    world.run_for(3)
    assert len(ticks["a"]) == 8


def test_a_process_that_is_paused_in_its_own_turn_goes_on_where_it_was(world: SimWorld) -> None:
    host = booted(world, "a")
    ran: list[int] = []
    host.loop.call_soon(ran.append, 1)
    host.loop.call_soon(host.pause)
    host.loop.call_soon(ran.append, 2)
    world.run_for(1)
    assert ran == [1]
    host.resume()
    world.run_for(1)
    assert ran == [1, 2]


def test_a_killed_process_leaves_without_a_word() -> None:
    said: list[str] = []

    async def program(host: SimHost) -> None:
        life = host.incarnation
        said.append(f"begin {life}")
        host.loop.call_later(2, said.append, f"timer {life}")
        try:
            await asyncio.sleep(3)
            said.append(f"end {life}")
        finally:
            said.append(f"finally {life}")
            asyncio.get_running_loop().call_soon(said.append, f"after {life}")

    with SimWorld(1) as world:
        host = world.host("a", program=program)
        host.boot()
        world.run_for(1)
        first_loop = host.loop
        host.kill()
        assert not host.is_running
        first_loop.call_soon(said.append, "from the grave")
        first_loop.call_later(1, said.append, "from the grave")
        world.run_for(10)
        assert said == ["begin 1"]
        host.boot()
        world.run_for(10)
        assert said == ["begin 1", "begin 2", "timer 2", "end 2", "finally 2", "after 2"]
    assert said[6:] == ["finally 1"]


def test_a_process_that_dies_in_its_own_turn_runs_nothing_after_it(world: SimWorld) -> None:
    host = booted(world, "a")
    ran: list[str] = []
    host.loop.call_soon(host.kill)
    host.loop.call_soon(ran.append, "too late")
    world.run_for(1)
    assert ran == []


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_leaves_the_disk_to_the_next_process(world: SimWorld, power: bool) -> None:
    host = booted(world, "a")
    disk = host.add_disk()
    file = disk.files.open("/data/f", create=True)
    file.write_at(0, [b"synced"])
    file.sync()
    disk.files.sync_dir("/data")
    file.write_at(6, [b" unsynced"])
    if power:
        host.cut_power("none")
    else:
        host.kill()
    with pytest.raises(OSError, match="off"):
        disk.files.open("/data/f")
    host.boot()
    assert host.disk is not disk
    assert host.disk.files.read_file("/data/f") == (b"synced" if power else b"synced unsynced")
    done: list[OSError | None] = []
    host.disk.journal_queue.write(host.disk.files.open("/data/f"), 0, [b"S"], done.append)
    world.run_for(1)
    assert done == [None]
