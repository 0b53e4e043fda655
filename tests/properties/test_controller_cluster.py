"""Clusters under faults: brokers die and return, empty or intact; images are outdated; leaders and controllers race.

`controller_world` has the model and its invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.machines.controller.election import View
from ottla.machines.controller.partition_requests import ElectionType
from ottla.protocol.model.durability import Durability
from tests.properties.controller_world import World
from tests.support.controller_store import P0

BROKERS = 4
MINIMA = [None, 1, 2, 3]

Step = tuple[str, int, int, int]
"""The action, its broker, another broker (as in `World.named`), and a parameter."""


def chosen(number: int) -> list[int]:
    """The brokers whose bits are set; if none, the first three."""
    return [broker_id for broker_id in range(1, BROKERS + 1) if number >> broker_id & 1] or [1, 2, 3]


ACTIONS: dict[str, Callable[[World, int, int, int], None]] = {
    "start": lambda world, one, _, number: world.start(one, wiped=number % 4 == 0, rebooted=number % 2 == 0),
    "stop": lambda world, one, _, number: world.stop(one),
    "expire": lambda world, one, _, number: world.expire(one),
    "resume": lambda world, one, _, number: world.resume(one),
    "catch up": lambda world, one, _, number: world.catch_up(one),
    "catch up a little": lambda world, one, _, number: world.catch_up(one, 1 + number % 3),
    "drain": lambda world, one, _, number: world.set_draining(one, number % 2 == 0),
    "fail": lambda world, one, _, number: world.fail_log(one, number % 2 == 0),
    "produce": lambda world, one, _, number: world.produce(one),
    "replicate": lambda world, one, other, number: world.replicate(one, other),
    "commit": lambda world, one, _, number: world.move_watermark(one),
    "isr": lambda world, one, _, number: world.change_isr(world.brokers[one], set(chosen(number))),
    "paused isr": lambda world, one, _, number: world.change_paused_isrs(set(chosen(number))),
    "calm": lambda world, one, _, number: world.calm(),
    "traffic": lambda world, one, _, number: world.traffic(chosen(number)),
    "control": lambda world, one, _, number: world.take_control(one),
    "plan": lambda world, one, _, number: world.plan(one),
    "reassign": lambda world, one, _, number: world.reassign(one, chosen(number)),
    "cancel": lambda world, one, _, number: world.reassign(one, None),
    "prefer": lambda world, one, _, number: world.elect(one, ElectionType.PREFERRED),
    "unclean": lambda world, one, _, number: world.elect(one, ElectionType(number % 8 == 0)),
    "min isr": lambda world, one, _, number: world.set_min_insync(1 + number % 3),
}
OFTEN = [*["traffic"] * 9, *["calm"] * 6, *["isr"] * 4, *["start", "catch up", "plan"] * 2]

brokers = st.integers(0, BROKERS + 1)
steps = st.lists(
    st.tuples(st.sampled_from([*ACTIONS, *OFTEN]), brokers, brokers, st.integers(0, 31)), min_size=1, max_size=80
)


def run(durability: Durability, min_insync: int | None, happenings: Iterable[Step]) -> None:
    world = World(BROKERS, durability, min_insync)
    for name, one, other, number in happenings:
        ACTIONS[name](world, world.named(one), world.named(other), number)
        world.check()
    state = world.settle()
    world.check()
    view = View(world.truth, P0, world.rules(world.truth))
    if world.truth.controller is not None and any(map(view.is_alive, (*state.isr, *state.eligible))):
        assert view.leader_stands(state)


@settings(max_examples=150)
@given(st.sampled_from(Durability), st.sampled_from(MINIMA), steps)
def test_nothing_committed_is_lost_while_somebody_has_it(
    durability: Durability, min_insync: int | None, happenings: list[Step]
) -> None:
    run(durability, min_insync, happenings)


@pytest.mark.parametrize("number", range(40))
def test_nor_in_long_runs(number: int, seed: int) -> None:
    """Each run has only some of the faults, so that faults that undo one another are not always combined."""
    random = Random(f"{seed}-{number}")
    names = [*(name for name in ACTIONS if random.random() < 0.6), *OFTEN]
    happenings = [
        (
            random.choice(names),
            random.choice([0, 0, *range(BROKERS + 2)]),
            random.randint(1, BROKERS),
            random.randrange(32),
        )
        for _ in range(200)
    ]
    run(random.choice(list(Durability)), random.choice(MINIMA), happenings)
