"""A failed segment file is replaced; acknowledged records are neither lost nor duplicated (safety: failed-sync)."""

from __future__ import annotations

import pytest

from tests.simulation.log_world import LogWorld, read_all


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in range(40)])
@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_failed_segment_is_written_anew_from_the_journal(seed: int, operation: str) -> None:
    world = LogWorld(seed)
    disk_logs = [model for model in world.models if model.is_disk]
    for round_number in range(6):
        for _ in range(world.random.randint(3, 25)):
            world.append(world.random.choice(disk_logs), world.random.choice([20, 400, 1500]))
            world.steps(world.random.randint(0, 5))
        if round_number % 2 == 0:
            fail = world.disk.faults.fail_sync if operation == "sync" else world.disk.faults.fail_write
            fail(world.random.randint(1, 2), path=".log")
        world.flush(everything=True)
        world.steps(world.random.randint(0, 40))
    world.disk.faults.clear()
    world.settle(1000)
    world.flush(everything=True)
    world.settle(1000)
    for model in disk_logs:
        log = world.log(model)
        assert log.failed is None
        assert log.acknowledged_end == model.end_offset
        assert read_all(log) == model.batches
    world.crash("none")
    world.start()
    world.check_after_restart()


def test_a_cache_log_has_no_journal_to_come_back_from() -> None:
    world = LogWorld(1)
    model = next(model for model in world.models if not model.is_disk)
    world.append(model, 100)
    world.settle()
    world.disk.faults.fail_sync(path=".log")
    world.flush(everything=True)
    world.settle()
    assert world.log(model).failed is not None
    assert not world.append(model, 100)
    assert read_all(world.log(model)) == model.batches
