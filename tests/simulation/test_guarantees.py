"""The tables of docs/reference/guarantees.md, row by row: whole brokers on simulated machines, and one failure.

Where a table says "kept", the test checks that all acknowledged records are there. Where it says that records may be
lost, the test causes the loss, to show that no promise is made.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.sim.world import SimWorld
from tests.simulation.guarantees import SESSION_S, GuaranteeBench

KEPT, END_LOST, ALL_LOST = "kept", "what was not flushed may be lost", "lost"
BEFORE = [b"before %d" % number for number in range(20)]
AFTER = [b"after %d" % number for number in range(5)]
LATE = [b"late %d" % number for number in range(5)]


def one_process(bench: GuaranteeBench) -> None:
    dead = bench.leader()
    bench.kill(dead)
    bench.wait_for_another_leader(dead)
    bench.boot(dead)


def one_machine(bench: GuaranteeBench) -> None:
    dead = bench.leader()
    bench.cut_power(dead)
    bench.wait_for_another_leader(dead)
    bench.boot(dead)


def one_disk(bench: GuaranteeBench) -> None:
    dead = bench.leader()
    bench.destroy_disk(dead)
    bench.wait_for_another_leader(dead)
    bench.boot(dead)


def all_processes(bench: GuaranteeBench) -> None:
    bench.kill(*bench.names)
    bench.world.run_for(2 * SESSION_S)
    bench.boot(*bench.names)


def all_machines(bench: GuaranteeBench) -> None:
    bench.cut_power(*bench.names)
    bench.world.run_for(2 * SESSION_S)
    bench.boot(*bench.names)


def a_cut(bench: GuaranteeBench) -> None:
    old = bench.leader()
    bench.cut_off(old)
    bench.wait_for_another_leader(old)
    bench.world.run_for(SESSION_S)
    bench.heal(old)


def a_pause(bench: GuaranteeBench) -> None:
    old = bench.leader()
    bench.host(old).pause()
    bench.wait_for_another_leader(old)
    bench.world.run_for(SESSION_S)
    bench.host(old).resume()


Failure = Callable[[GuaranteeBench], None]
OF_ONE: tuple[Failure, ...] = (one_process, one_machine, one_disk, a_cut, a_pause)
TABLE: dict[tuple[Failure, str], str] = {
    **{(failure, durability): KEPT for failure in OF_ONE for durability in ("disk", "cache", "memory")},
    (all_processes, "disk"): KEPT,
    (all_processes, "cache"): KEPT,
    (all_processes, "memory"): ALL_LOST,
    (all_machines, "disk"): KEPT,
    (all_machines, "cache"): END_LOST,
    (all_machines, "memory"): ALL_LOST,
}


def named(value: object) -> str:
    return getattr(value, "__name__", str(value)).replace("_", "-")


@pytest.mark.parametrize(
    ("failure", "durability", "outcome"), [(*row, outcome) for row, outcome in TABLE.items()], ids=named
)
def test_acks_all(failure: Failure, durability: str, outcome: str) -> None:
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability=durability)
        assert bench.write(BEFORE) == BEFORE
        failure(bench)
        bench.wait_until_in_sync()
        assert bench.write(AFTER) == AFTER
        found = bench.read()
    values = list(found.values())
    assert values[-len(AFTER) :] == AFTER, "writing goes on"
    kept = values[: -len(AFTER)]
    if outcome is KEPT:
        assert kept == BEFORE
        assert list(found) == list(range(len(values)))
    elif outcome is END_LOST:
        assert kept == BEFORE[: len(kept)], "only from the end"
        assert len(kept) < len(BEFORE), "all of it was flushed in time: this shows nothing"
    else:
        assert kept == []
        assert min(found) > len(BEFORE), "no offset is given out twice"


@pytest.mark.parametrize("durability", ["disk", "cache", "memory"])
@pytest.mark.parametrize("failure", [one_process, one_machine, one_disk, a_cut], ids=named)
def test_acks_1_loses_what_only_the_leader_had(failure: Failure, durability: str) -> None:
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability=durability)
        assert bench.write(BEFORE, acks=1) == BEFORE
        world.run_for(1.0)  # the followers have the records now
        world.network.cut([bench.leader()], bench.followers())
        assert bench.write(LATE, acks=1) == LATE
        failure(bench)
        world.network.heal()
        bench.wait_until_in_sync()
        assert list(bench.read().values()) == BEFORE


@pytest.mark.parametrize("durability", ["disk", "cache"])
def test_acks_1_loses_it_also_when_all_processes_die_and_the_leader_comes_back_last(durability: str) -> None:
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability=durability)
        assert bench.write(BEFORE, acks=1) == BEFORE
        world.run_for(1.0)
        leader, followers = bench.leader(), bench.followers()
        world.network.cut([leader], followers)
        assert bench.write(LATE, acks=1) == LATE
        bench.kill(*bench.names)
        world.network.heal()
        bench.boot(*followers)
        bench.wait_for_another_leader(leader)
        bench.boot(leader)
        bench.wait_until_in_sync()
        assert list(bench.read().values()) == BEFORE


def test_acks_0_says_nothing_of_a_record_that_never_arrived() -> None:
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability="disk")
        assert bench.write(BEFORE, acks=0) == BEFORE
        world.run_for(1.0)
        assert list(bench.read().values()) == BEFORE, "nothing went wrong"
        leader = bench.leader()
        assert bench.write_into_a_power_cut(LATE, acks=0) == LATE, "the producer hears nothing of it"
        bench.boot(leader)
        bench.wait_until_in_sync()
        assert list(bench.read().values()) in (BEFORE, BEFORE + LATE[:1])


def test_a_leader_that_is_cut_off_acknowledges_nothing_more() -> None:
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability="disk")
        assert bench.write(BEFORE) == BEFORE
        old = bench.leader()
        bench.cut_off(old)
        world.network.cut(["driver"], [name for name in bench.names if name != old])
        assert bench.write(LATE, timeout_s=10.0) == []
        bench.heal(old)
        bench.wait_until_in_sync()
        found = list(bench.read().values())
        assert found[: len(BEFORE)] == BEFORE


# -- the examples of the case study: five replicas -------------------------------------------------------------------


def test_five_replicas_of_which_three_must_be_in_sync_bear_two_failures_and_go_on() -> None:
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=5, min_insync=3, durability="disk")
        assert bench.write(BEFORE) == BEFORE
        first, second, third = bench.leader(), *bench.followers()[:2]
        bench.kill(first, second)
        bench.wait_until_in_sync(set(bench.names) - {first, second})
        assert bench.write(AFTER) == AFTER, "three are left: enough to write"
        world.run_for(1.0)  # all replicas know that the record is committed; the next leader may not find out
        bench.kill(third)
        bench.wait_until_in_sync(set(bench.names) - {first, second, third})
        assert bench.write(LATE, timeout_s=5.0) == [], "two are left: NOT_ENOUGH_REPLICAS"
        assert list(bench.read().values()) == BEFORE + AFTER, "and enough to read"
        bench.boot(first, second, third)
        bench.wait_until_in_sync()
        assert list(bench.read().values())[: len(BEFORE + AFTER)] == BEFORE + AFTER


def test_two_of_the_three_that_were_in_sync_lose_their_disks() -> None:
    """The worst case that "three must be in sync" allows: acknowledged by three, two of them destroyed at once."""
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=5, min_insync=3, durability="disk")
        assert bench.write(BEFORE) == BEFORE
        slow = bench.followers()[:2]
        bench.kill(*slow)
        bench.wait_until_in_sync(set(bench.names) - set(slow))
        assert bench.write(AFTER) == AFTER
        lost = [bench.leader(), next(name for name in bench.followers() if name not in slow)]
        bench.destroy_disk(*lost)
        bench.boot(*slow, *lost)
        bench.wait_until_in_sync()
        assert list(bench.read().values()) == BEFORE + AFTER


def test_when_all_five_must_be_in_sync_one_failure_stops_writing_and_four_lose_nothing() -> None:
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=5, min_insync=5, durability="disk")
        assert bench.write(BEFORE) == BEFORE
        first = bench.followers()[0]
        bench.kill(first)
        bench.wait_until_in_sync(set(bench.names) - {first})
        assert bench.write(LATE, timeout_s=5.0) == [], "four are left: NOT_ENOUGH_REPLICAS"
        bench.boot(first)
        bench.wait_until_in_sync()
        shown = list(bench.read().values())
        assert shown[: len(BEFORE)] == BEFORE
        last = bench.followers()[-1]
        bench.destroy_disk(*(name for name in bench.names if name != last))
        bench.boot(*(name for name in bench.names if name != last))
        bench.wait_until_in_sync()
        assert list(bench.read().values()) == shown, "one disk of five is left, and has everything"
