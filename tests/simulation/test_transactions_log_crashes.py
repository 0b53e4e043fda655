"""Transactions in logs: crashes at any time and any byte, truncations, and removal of old records.

A failure names its seed; `pytest -k "seed-17"` runs it again.
"""

from __future__ import annotations

import os

import pytest

from ottla.sim.disk import Keep
from tests.simulation.transactions_log_world import TransactionsWorld

SEEDS = int(os.environ.get("OTTLA_SIM_SEEDS", "150")) // 2
FOUND = {168, 237}
"""The index forgot transactions below a start offset that a crash then reverted."""
KEEPS: list[Keep] = ["some", "all", "none"]


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in sorted({*range(SEEDS), *FOUND})])
def test_a_log_knows_its_transactions_after_a_crash(seed: int) -> None:
    world = TransactionsWorld(seed)
    random = world.random
    for _ in range(4):
        for _ in range(random.randint(5, 100)):
            model = random.choice(world.models)
            action = random.random()
            if action < 0.66:
                world.append(model, random.choice([10, 100, 1000]))
            elif action < 0.85:
                world.steps(random.randint(1, 6))
            elif action < 0.91:
                world.settle(random.choice([1.0, 25.0]))
            elif action < 0.96:
                world.flush(everything=random.random() < 0.5)
            elif action < 0.98:
                world.truncate(model)
            else:
                world.advance_start(model)
                world.retain(model)
        world.crash(random.choice(KEEPS))
        world.start()
        world.check_after_restart()
