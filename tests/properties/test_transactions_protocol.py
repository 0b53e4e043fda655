"""Transactions under faults: coordinators fail over, leaders move, markers and answers are lost and repeated, producers
are started again, time-outs come. `transactions_world` has the model and what is checked at each step."""

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
"""What happens, to which client, and a number that says more."""


def act_and_commit(world: World, client: Client) -> None:
    client.act()
    world.commit()
    for partition in world.partitions:
        world.commit_partition(partition)


def mark_all(world: World) -> None:
    world.commit()
    while world.mail:
        world.mark(0)
    for partition in world.partitions:
        world.commit_partition(partition)
    world.commit()


ACTIONS: dict[str, Callable[[World, Client, int], None]] = {
    "act": lambda world, client, _: client.act(),
    "act and commit": lambda world, client, _: act_and_commit(world, client),
    "commit": lambda world, _, number: world.commit(),
    "commit a little": lambda world, _, number: world.commit(1 + number % 3),
    "commit partition": lambda world, _, number: world.commit_partition(world.partitions[number % 3]),
    "commit some of a partition": lambda world, _, number: world.commit_partition(
        world.partitions[number % 3], world.logs[world.partitions[number % 3]].watermark + 1 + number // 3
    ),
    "mark": lambda world, _, number: world.mark(number),
    "mark all": lambda world, _, number: mark_all(world),
    "mark and repeat": lambda world, _, number: world.mark(number, is_repeated=True),
    "lose marker": lambda world, _, number: world.lose_marker(number),
    "wait": lambda world, _, number: world.wait(50 * number),
    "wait long": lambda world, _, number: world.wait(3_000 + 1_000 * number),
    "fail over": lambda world, _, number: world.fail_over(number % 4),
    "move leader": lambda world, client, number: world.move_leader(world.partitions[client.place % 3], number),
    "restart": lambda world, client, _: client.restart(),
    "revive": lambda world, client, _: client.restart() if client.phase is Phase.DEAD else None,
    "give up": lambda world, client, _: client.give_up(),
    "lose": lambda world, client, _: setattr(client, "loses_next", True),
    "echo": lambda world, client, number: world.echo(number * 7 + client.place),
    "operator": lambda world, _, number: world.abort_by_operator(number),
}
OFTEN = [
    *["act"] * 6,
    *["act and commit"] * 16,
    *["mark all"] * 3,
    "mark",
    "commit",
    "commit partition",
    "wait",
    "revive",
]
VERSIONS = {"version 2": [2] * CLIENTS, "before version 2": [0] * CLIENTS, "both": [2, 1, 0]}

steps = st.lists(
    st.tuples(st.sampled_from([*ACTIONS, *OFTEN]), st.integers(0, CLIENTS - 1), st.integers(0, 99)),
    min_size=1,
    max_size=80,
)


def run(versions: list[int], random: Random, happenings: Iterable[Step]) -> World:
    world = World(random, versions)
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
    """Each with some of the faults, so that those that undo one another do not always come together."""
    random = Random(f"{seed}-{number}")
    names = [*(name for name in ACTIONS if random.random() < 0.5), *OFTEN]
    happenings = [(random.choice(names), random.randrange(CLIENTS), random.randrange(100)) for _ in range(250)]
    run(versions, random, happenings)


def test_without_faults_everything_is_committed_or_aborted_as_wanted() -> None:
    """So that the other tests test something."""
    random = Random(7)
    names = ["act and commit"] * 8 + ["mark all"]
    happenings = [(random.choice(names), random.randrange(2), 0) for _ in range(300)]
    world = run([2, 1], random, happenings)
    told = list(world.outcomes.values())
    assert told.count(True) > 10
    assert told.count(False) > 3
    with_records = {tag for tag, contents in world.contents.items() if contents}
    assert with_records <= set(world.outcomes), "everybody was told"
