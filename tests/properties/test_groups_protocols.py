"""Groups under faults: members join, leave, hang and are killed, replies are lost, coordinators fail over.

`groups_world` has the model and its invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.groups_clients import ClassicClient, Client, ConsumerClient
from tests.properties.groups_world import World

CLIENTS = 4
Step = tuple[str, int, int]
"""The action, its client, and a parameter."""


def act_and_commit(world: World, client: Client) -> None:
    client.act()
    world.commit()


def resubscribe(client: Client, number: int) -> None:
    if isinstance(client, ConsumerClient):
        client.resubscribe(number)


ACTIONS: dict[str, Callable[[World, Client, int], None]] = {
    "act": lambda world, client, _: client.act(),
    "act and commit": lambda world, client, _: act_and_commit(world, client),
    "commit": lambda world, _, number: world.commit(),
    "commit a little": lambda world, _, number: world.commit(1 + number % 3),
    "wait": lambda world, _, number: world.wait(300 * number),
    "wait long": lambda world, _, number: world.wait(9_000 + 1_000 * number),
    "fail over": lambda world, _, number: world.fail_over(number % 4),
    "kill": lambda world, client, _: client.kill(),
    "restart": lambda world, client, _: client.restart(),
    "leave": lambda world, client, _: client.leave(),
    "give up": lambda world, client, _: client.give_up(),
    "lose": lambda world, client, _: setattr(client, "loses_next", True),
    "commit offset": lambda world, client, _: world.commit_offset(client),
    "read": lambda world, _, number: world.read_offset(),
    "grow": lambda world, _, number: world.grow() if world.partition_count < 8 else None,
    "switch": lambda world, client, _: world.switch(client.place),
    "resubscribe": lambda world, client, number: resubscribe(client, number),
    "resolve": lambda world, _, number: world.resolve(),
}
OFTEN = [*["act"] * 8, *["act and commit"] * 8, *["commit"] * 4, "wait", "commit offset", "read"]
KINDS: list[list[type[Client]]] = [
    [ClassicClient] * CLIENTS,
    [ConsumerClient] * CLIENTS,
    [ClassicClient, ConsumerClient] * (CLIENTS // 2),
]
names_of_happenings = ["classic", "consumer", "both"]

steps = st.lists(
    st.tuples(st.sampled_from([*ACTIONS, *OFTEN]), st.integers(0, CLIENTS - 1), st.integers(0, 9)),
    min_size=1,
    max_size=80,
)


def run(kinds: list[type[Client]], random: Random, happenings: Iterable[Step]) -> None:
    world = World(kinds, random)
    is_mixed = len(set(kinds)) > 1
    for name, place, number in happenings:
        if name == "switch" and not is_mixed:
            continue
        ACTIONS[name](world, world.clients[place], number)
        world.check()
    world.settle()
    world.end()


@pytest.mark.parametrize("kinds", KINDS, ids=names_of_happenings)
@settings(max_examples=40)
@given(happenings=steps, number=st.integers(0, 1000))
def test_whatever_happens(kinds: list[type[Client]], happenings: list[Step], number: int) -> None:
    run(kinds, Random(number), happenings)


@pytest.mark.parametrize("kinds", KINDS, ids=names_of_happenings)
@pytest.mark.parametrize("number", range(30))
def test_in_long_runs(kinds: list[type[Client]], number: int, seed: int) -> None:
    """Each run has only some of the faults, so that faults that undo one another are not always combined."""
    random = Random(f"{seed}-{number}")
    names = [*(name for name in ACTIONS if random.random() < 0.6), *OFTEN]
    happenings = [(random.choice(names), random.randrange(CLIENTS), random.randrange(10)) for _ in range(250)]
    run(kinds, random, happenings)
