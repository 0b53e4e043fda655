"""Transactions under faults: coordinators fail over, leaders move, markers and replies are lost and repeated, producers
restart, transactions time out. `transactions_world` has the model and its invariants."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.transactions_clients import Client, Phase
from tests.properties.transactions_world import World

CLIENTS = 3
Step = tuple[str, int, int]
"""The action, its client, and a parameter."""


def act_and_commit(world: World, client: Client) -> None:
    client.act()
    world.commit()
    commit_partitions(world)


def commit_partitions(world: World) -> None:
    """Commits some of the partitions, some of them not to their ends."""
    for partition in world.partitions:
        if world.random.random() < 0.7:
            log = world.logs[partition]
            world.commit_partition(partition, world.random.choice([log.end, world.random.randint(0, log.end)]))


def mark_most(world: World) -> None:
    if world.random.random() < 0.7:
        world.commit()
    for _ in range(len(world.mail)):
        if world.random.random() < 0.8:
            world.mark(world.random.randrange(100))
    commit_partitions(world)
    world.commit()


def fail_over_while_marking(world: World, number: int) -> None:
    if number % 2:
        world.commit()
    for _ in range((len(world.mail) + 1) // 2):
        world.mark(number)
    world.fail_over(0)


def fail_over_while_ending(world: World, client: Client) -> None:
    """Its request is lost and not repeated: a marker that had been sent would remain alone."""
    if client.phase is Phase.RUNNING and client.waits_for is None and not client.unacknowledged and not client.failed:
        client.decide(is_commit=True)
        for _ in range((len(world.mail) + 1) // 2):
            world.mark(0)
        world.fail_over(0)
        client.restart()


ACTIONS: dict[str, Callable[[World, Client, int], None]] = {
    "act": lambda world, client, _: client.act(),
    "act and commit": lambda world, client, _: act_and_commit(world, client),
    "commit": lambda world, _, number: world.commit(),
    "commit a little": lambda world, _, number: world.commit(1 + number % 3),
    "commit partition": lambda world, _, number: world.commit_partition(world.partitions[number % 3]),
    "mark": lambda world, _, number: world.mark(number),
    "mark most": lambda world, _, number: mark_most(world),
    "mark late": lambda world, _, number: world.mark_late(number),
    "append": lambda world, _, number: world.append_verified(),
    "lose marker": lambda world, _, number: world.lose_marker(number),
    "wait": lambda world, _, number: world.wait(50 * number),
    "wait long": lambda world, _, number: world.wait(3_000 + 1_000 * number),
    "fail over": lambda world, _, number: world.fail_over(number % 4),
    "fail over while marking": lambda world, _, number: fail_over_while_marking(world, number),
    "fail over while ending": lambda world, client, _: fail_over_while_ending(world, client),
    "move leader": lambda world, client, number: world.move_leader(world.partitions[client.place % 3], number),
    "restart": lambda world, client, _: client.restart(),
    "revive": lambda world, client, _: client.restart() if client.phase is Phase.DEAD else None,
    "give up": lambda world, client, _: client.give_up(),
    "lose": lambda world, client, _: setattr(client, "loses_next", True),
    "echo": lambda world, client, number: world.echo(number * 7 + client.place),
    "turn": lambda world, client, _: world.turn(client),
    "operator": lambda world, _, number: world.abort_by_operator(number),
}
OFTEN = [
    *["act"] * 6,
    *["act and commit"] * 16,
    *["mark most"] * 4,
    *["append"] * 3,
    *["mark", "mark late", "commit", "commit partition", "wait", "revive"],
]
VERSIONS = {"version 2": [2] * CLIENTS, "before version 2": [0] * CLIENTS, "both": [2, 1, 0]}

steps = st.lists(
    st.tuples(st.sampled_from([*ACTIONS, *OFTEN]), st.integers(0, CLIENTS - 1), st.integers(0, 99)),
    min_size=1,
    max_size=80,
)


def run(versions: list[int], random: Random, happenings: Iterable[Step], *, is_careless: bool = True) -> World:
    world = World(random, versions, is_careless=is_careless)
    for name, place, number in happenings:
        ACTIONS[name](world, world.clients[place], number)
        world.check()
    world.settle()
    return world


@pytest.mark.parametrize("versions", VERSIONS.values(), ids=VERSIONS)
@settings(max_examples=40)
@given(happenings=steps, number=st.integers(0, 1000))
def test_whatever_happens(versions: list[int], happenings: list[Step], number: int) -> None:
    run(versions, Random(number), happenings)


@pytest.mark.parametrize("versions", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("number", range(12))
def test_in_long_runs(versions: list[int], number: int, seed: int) -> None:
    """Each run has only some of the faults, so that faults that undo one another are not always combined."""
    random = Random(f"{seed}-{number}")
    names = [*[name for name in ACTIONS if random.random() < 0.4] * 2, *OFTEN]
    happenings = [(random.choice(names), random.randrange(CLIENTS), random.randrange(100)) for _ in range(250)]
    run(versions, random, happenings)


def test_without_faults_everything_is_committed_or_aborted_as_wanted() -> None:
    """Shows that the other tests are not vacuous."""
    random = Random(7)
    names = ["act and commit"] * 8 + ["mark most", "append", "append"]
    happenings = [(random.choice(names), random.randrange(2), 0) for _ in range(400)]
    world = run([2, 1], random, happenings, is_careless=False)
    told = list(world.outcomes.values())
    assert told.count(True) > 5
    assert told.count(False) > 3
    with_records = {tag for tag, contents in world.contents.items() if contents}
    assert with_records <= set(world.outcomes), "everybody was told"
