"""Simulated links and hosts fail in every way but one: received bytes are the sent ones, in order."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import cast

import pytest

from ottla.sim.fault_plan import FaultKind, FaultPlan
from ottla.sim.hosts import SimHost
from ottla.sim.links import Delay
from ottla.sim.world import SimWorld
from tests.support.sim_peers import PORT, Peer, connect_error, connected, listen, on

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(1) as world:
        for name in ("client", "server", "other"):
            world.host(name)
        world.boot_all()
        yield world


# -- cut links -------------------------------------------------------------------------------------------------------


def test_bytes_stall_in_a_cut_and_arrive_after_it(world: SimWorld) -> None:
    client, server = connected(world)
    cut = world.network.cut(["client"], ["server"])
    for number in range(10):
        world.hosts["client"].loop.call_later(number, client.transport.write, b"%d" % number)
    world.run_for(30)
    assert server.data == b""
    assert client.events == server.events == ["made"]
    cut.heal()
    cut.heal()
    world.run_for(1)
    assert server.data == b"0123456789"


def test_what_was_on_the_wire_does_not_pass_a_cut_either(world: SimWorld) -> None:
    world.network.link("client", "server").delay = Delay(min_s=1)
    client, server = connected(world)
    on(world.hosts["client"], lambda: client.transport.write(b"late"))
    cut = world.network.cut(["server"], ["client"])
    world.run_for(5)
    assert server.data == b""
    cut.heal()
    world.run_for(5)
    assert server.data == b"late"


def test_faults_add_up_and_heal_one_by_one(world: SimWorld) -> None:
    client, server = connected(world)
    first, second = world.network.cut(["client"], ["server"]), world.network.partition(["client", "other"], ["server"])
    on(world.hosts["client"], lambda: client.transport.write(b"x"))
    first.heal()
    world.run_for(5)
    assert server.data == b""
    second.heal()
    world.run_for(5)
    assert server.data == b"x"
    world.network.cut(["client"], ["server"])
    world.network.slow_down(["client"], ["server"], add_s=100)
    world.network.heal()
    on(world.hosts["client"], lambda: client.transport.write(b"y"))
    world.run_for(1)
    assert server.data == b"xy"


def test_a_one_way_cut_leaves_a_connection_half_open(world: SimWorld) -> None:
    client, server = connected(world)
    cut = world.network.cut(["server"], ["client"], one_way=True)
    on(world.hosts["client"], lambda: client.transport.write(b"request"))
    world.run_for(1)
    on(world.hosts["server"], lambda: server.transport.write(b"reply"))
    world.run_for(5)
    assert (server.data, client.data) == (b"request", b"")
    assert client.events == server.events == ["made"]
    cut.heal()
    world.run_for(5)
    assert client.data == b"reply"


def test_a_writer_that_hears_nothing_back_stops_at_its_window(world: SimWorld) -> None:
    """Data arrives, but acknowledgements are lost."""
    client, server = connected(world)
    cut = world.network.cut(["server"], ["client"], one_way=True)
    on(world.hosts["client"], lambda: client.transport.write(b"x" * 1_000_000))
    world.run_for(60)
    assert len(server.data) == world.network.settings.window_bytes
    cut.heal()
    world.run_for(60)
    assert len(server.data) == 1_000_000


def test_a_partition_keeps_groups_together(world: SimWorld) -> None:
    world.hosts["server"].spawn(listen(world.hosts["server"], []))
    world.run_for(0.1)
    fault = world.network.partition(["server", "other"], ["client"])
    inside = world.hosts["other"].spawn(world.hosts["other"].loop.create_connection(Peer, "server", PORT))
    outside = world.hosts["client"].spawn(world.hosts["client"].loop.create_connection(Peer, "server", PORT))
    world.run_for(3)
    assert (inside.done(), outside.done()) == (True, False)
    fault.heal()
    world.run_until(outside.done, timeout_s=10)


def test_a_connection_times_out_in_a_long_cut(world: SimWorld) -> None:
    client, server = connected(world)
    cut = world.network.cut(["client"], ["server"])
    on(world.hosts["client"], lambda: client.transport.write(b"x"))
    world.run_for(world.network.settings.give_up_s + 5)
    assert isinstance(client.lost_with, TimeoutError)
    assert server.events == ["made"]
    cut.heal()
    on(world.hosts["server"], lambda: server.transport.write(b"anybody there?"))
    world.run_for(1)
    assert isinstance(server.lost_with, ConnectionResetError)


def test_resets_break_both_ends(world: SimWorld) -> None:
    client, server = connected(world)
    assert world.network.reset(["server"], ["other"]) == 0
    assert world.network.reset(["server"], ["client"]) == 1
    world.run_for(1)
    assert isinstance(client.lost_with, ConnectionResetError)
    assert isinstance(server.lost_with, ConnectionResetError)
    assert not world.hosts["client"].sockets


# -- hosts -----------------------------------------------------------------------------------------------------------


def test_a_killed_process_closes_its_connections(world: SimWorld) -> None:
    client, server = connected(world)
    on(world.hosts["server"], lambda: server.transport.write(b"sent before"))
    world.hosts["server"].kill()
    world.run_for(1)
    assert client.data == b"sent before"
    assert client.events == ["made", "eof", "lost"]
    assert server.events == ["made"]
    assert isinstance(connect_error(world), ConnectionRefusedError)


def test_a_killed_process_with_unread_bytes_resets(world: SimWorld) -> None:
    client, server = connected(world)
    server.transport.pause_reading()
    on(world.hosts["client"], lambda: client.transport.write(b"x"))
    world.run_for(0.1)
    world.hosts["server"].kill()
    world.run_for(1)
    assert isinstance(client.lost_with, ConnectionResetError)


def test_nobody_hears_of_a_power_cut_before_the_machine_is_back(world: SimWorld) -> None:
    client, _ = connected(world)
    world.hosts["server"].cut_power()
    on(world.hosts["client"], lambda: client.transport.write(b"x"))
    world.run_for(20)
    assert client.events == ["made"]
    world.hosts["server"].boot()
    world.run_for(2)
    assert isinstance(client.lost_with, ConnectionResetError)


def test_a_process_behind_a_cut_dies_unnoticed(world: SimWorld) -> None:
    client, _ = connected(world)
    cut = world.network.cut(["client"], ["server"])
    world.hosts["server"].kill()
    world.run_for(10)
    assert client.events == ["made"]
    cut.heal()
    world.run_for(2)
    assert client.events[-1] == "lost"


def test_the_kernel_of_a_paused_process_goes_on(world: SimWorld) -> None:
    peers: list[Peer] = []
    client, server = world.hosts["client"], world.hosts["server"]
    server.spawn(listen(server, peers))
    world.run_for(0.1)
    server.pause()
    connecting = client.spawn(client.loop.create_connection(Peer, "server", PORT))
    world.run_until(connecting.done, timeout_s=1)
    peer = cast(Peer, connecting.result()[1])
    peer.transport.write(b"x" * 1_000_000)
    world.run_for(20)
    assert peers == []
    taken = 1_000_000 - peer.transport.get_write_buffer_size()
    assert taken == world.network.settings.window_bytes
    server.resume()
    world.run_until(lambda: bool(peers) and len(peers[0].data) == 1_000_000, timeout_s=5)


def test_a_new_process_knows_nothing_of_old_connections(world: SimWorld) -> None:
    client, server = connected(world)
    world.hosts["server"].kill()
    world.hosts["server"].boot()
    again: list[Peer] = []
    world.hosts["server"].spawn(listen(world.hosts["server"], again))
    on(world.hosts["client"], lambda: client.transport.write(b"for the dead"))
    world.run_for(1)
    assert server.data == b""
    assert again == []
    assert client.events[-1] == "lost"


# -- plans and determinism -------------------------------------------------------------------------------------------


def test_a_plan_follows_from_its_seed() -> None:
    def plan(seed: int) -> FaultPlan:
        return FaultPlan.drawn(seed, servers=["a", "b"], clients=["c"], duration_s=10, count=50)

    assert plan(1) == plan(1)
    assert plan(1) != plan(2)
    assert {fault.kind for fault in plan(1).faults} == set(FaultKind)
    assert plan(1).ends_s <= 10.01
    assert str(plan(1)).count("\n") == 49


class EchoingPeer(Peer):
    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def echo(host: SimHost) -> None:
    await host.loop.create_server(EchoingPeer, host.name, PORT)
    await asyncio.get_running_loop().create_future()


async def talk(host: SimHost) -> None:
    rng = Random(f"{host.name}/{host.world.seed}")
    while True:
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection("server", PORT)
            for _ in range(10):
                data = rng.randbytes(rng.choice([10, 10_000]))
                writer.write(data)
                async with asyncio.timeout(3):
                    assert await reader.readexactly(len(data)) == data
                await asyncio.sleep(rng.random())
            writer.close()
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.3)


def stormy_world(seed: int) -> str:
    """Clients talk to an echo server under faults of every kind. Returns the trace."""
    with SimWorld(seed, keep_trace=True) as world:
        world.host("server", program=echo)
        for name in ("client-1", "client-2", "client-3"):
            world.host(name, program=talk, skew_ms=300)
        world.boot_all()
        plan = FaultPlan.drawn(
            seed, servers=["server", "client-1"], clients=["client-2", "client-3"], duration_s=30, count=15
        )
        plan.start(world)
        world.run_for(plan.ends_s + 30)
        assert not world.network.stalled
        assert all(host.is_running and not host.is_paused for host in world.hosts.values())
        before = world.trace.count
        world.run_for(10)
        assert world.trace.count > before + 100, "nothing goes on after the faults"
        return world.trace.text


@pytest.mark.parametrize("seed", range(10))
def test_a_storm_passes_and_is_the_same_each_time(seed: int) -> None:
    trace = stormy_world(seed)
    assert trace == stormy_world(seed)
    assert trace != stormy_world(seed + 1000)


def test_another_process_with_other_hashes_sees_the_same_storm() -> None:
    script = "from tests.unit.sim.test_sim_network import stormy_world; print(stormy_world(5), end='')"
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
    assert traces[0] == traces[1] == stormy_world(5)
