"""Destroys a server with its disk under pgbench and restores it from the log. For twenty rounds see `__main__`."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.processes.postgres.rounds import Rounds
from tests.processes.postgres.world import World


@pytest.mark.timeout(600)
@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_what_clients_saw_committed_is_restored(tmp_path: Path, seed: int, durability: str) -> None:
    said: list[str] = []
    with World(tmp_path, durability) as world:
        rounds = Rounds(world, Random(seed), said.append)
        rounds.prepare()
        try:
            for number in (1, 2):
                assert rounds.run(number), said
        finally:
            rounds.settle()
