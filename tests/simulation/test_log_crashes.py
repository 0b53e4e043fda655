"""Compares logs and journal with the list model, with crashes at any time and any byte.

A failure names its seed; `pytest -k "seed-17"` runs it again.
"""

from __future__ import annotations

import os

import pytest

from ottla.sim.disk import Keep
from tests.simulation.log_world import LogWorld

SEEDS = int(os.environ.get("OTTLA_SIM_SEEDS", "300"))
KEEPS: list[Keep] = ["some", "all", "none"]


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in range(SEEDS)])
def test_a_crash_at_any_moment_loses_nothing_acknowledged(seed: int) -> None:
    world = LogWorld(seed)
    random = world.random
    for _ in range(4):
        for _ in range(random.randint(5, 120)):
            model = random.choice(world.models)
            action = random.random()
            if action < 0.62:
                world.append(model, random.choice([10, 100, 1500]))
            elif action < 0.85:
                world.steps(random.randint(1, 6))
            elif action < 0.93:
                world.settle(random.choice([1.0, 25.0]))
            elif action < 0.97:
                world.flush(everything=random.random() < 0.5)
            else:
                world.advance_start(model)
                world.retain(model)
        world.crash(random.choice(KEEPS))
        world.start()
        world.check_after_restart()


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in range(20)])
def test_a_crash_during_recovery_changes_nothing(seed: int) -> None:
    world = LogWorld(seed)
    for _ in range(60):
        world.append(world.random.choice(world.models), 300)
        world.steps(world.random.randint(0, 4))
    world.crash("some")
    world.start()
    first = [world.log(model).end_offset for model in world.models]
    world.disk = world.disk.crash(world.random.randrange(1 << 30), keep="some")
    world.start()
    world.check_after_restart()
    assert [world.log(model).end_offset for model in world.models if model.is_disk] == [
        end for end, model in zip(first, world.models, strict=True) if model.is_disk
    ]


def test_a_clean_stop_leaves_nothing_to_replay() -> None:
    world = LogWorld(3)
    for _ in range(50):
        world.append(world.random.choice(world.models), 200)
    world.settle()
    world.flush(everything=True)
    world.settle()
    world.crash("none")
    world.start()
    world.check_after_restart()
    assert world.store.replayed.batches == 0
