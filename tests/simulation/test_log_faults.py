"""Compares logs and journal with the list model while the disk is full, fails, or stalls, with crashes in between.

Two properties must always hold: nothing acknowledged is lost, and writes continue without a restart when the fault is
over. A failure names its seed; `pytest -k "seed-17"` runs it again.
"""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from ottla.sim.disk import QUEUES, Keep
from tests.simulation.log_world import LogModel, LogWorld, read_all

SEEDS = max(int(os.environ.get("OTTLA_SIM_SEEDS", "300")) // 4, 10)
KEEPS: list[Keep] = ["some", "all", "none"]


def seeds(count: int = SEEDS) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed-{seed}") for seed in range(count)])


def some_appends(world: LogWorld, count: int) -> int:
    """Appends batches and returns how many were accepted."""
    random, taken = world.random, 0
    for _ in range(count):
        taken += world.append(random.choice(world.models), random.choice([10, 100, 1500]))
        world.steps(random.randint(0, 4))
        if random.random() < 0.1:
            world.settle(random.choice([1.0, 25.0, 600.0]))
        if random.random() < 0.1:
            world.flush(everything=random.random() < 0.5)
    return taken


def demand_life(world: LogWorld) -> None:
    """Checks that every log accepts a batch and acknowledges it now."""
    world.settle(5000)
    world.have_space()
    for model in world.models:
        assert world.append(model, 100), (world.log(model).failed, world.reports[-3:])
    world.settle(5000)
    for model in world.models:
        assert world.log(model).acknowledged_end == world.log(model).end_offset, "it stands still"
        demand_all_is_read(world, model)


def demand_all_is_read(world: LogWorld, model: LogModel) -> None:
    log = world.log(model)
    expected = [batch for batch in model.batches if int.from_bytes(batch[:8], "big") < log.acknowledged_end]
    assert read_all(log) == expected[len(expected) - len(read_all(log)) :]
    assert len(read_all(log)) == len(expected) or log.start_offset > 0


def restart(world: LogWorld, random: Random) -> None:
    """Restarts. A start on a full disk may fail; the next one sees the same state."""
    world.crash(random.choice(KEEPS))
    try:
        world.start()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        world.disk.capacity_bytes = None
        world.start()
    world.check_after_restart()


@seeds()
def test_a_full_disk_refuses_and_takes_again_without_a_restart(seed: int) -> None:
    world = LogWorld(seed, inline=seed % 2 == 0)
    random = world.random
    for _ in range(3):
        some_appends(world, random.randint(0, 20))
        world.disk.capacity_bytes = world.disk.used_bytes + random.randrange(300_000)
        some_appends(world, random.randint(20, 120))
        if random.random() < 0.5:
            world.disk.capacity_bytes = None
            demand_life(world)
        restart(world, random)
        world.disk.capacity_bytes = None
    demand_life(world)


@seeds()
def test_a_disk_that_fills_and_empties_all_the_time(seed: int) -> None:
    world = LogWorld(seed, inline=seed % 2 == 0)
    random = world.random
    for _ in range(12):
        world.disk.capacity_bytes = random.choice([None, world.disk.used_bytes + random.randrange(200_000)])
        some_appends(world, random.randint(1, 25))
        if random.random() < 0.3:
            world.have_space()
    world.disk.capacity_bytes = None
    demand_life(world)
    restart(world, random)


@seeds()
def test_segments_that_fail_are_written_anew(seed: int) -> None:
    """Single failures of syncs and writes: disk logs recover; a cache log may fail, and keeps what it synced."""
    world = LogWorld(seed, log_count=2, inline=seed % 2 == 0)
    random = world.random
    for _ in range(3):
        for _ in range(random.randint(1, 4)):
            if random.random() < 0.5:
                world.disk.faults.fail_sync(random.randint(1, 5), path=".log")
            else:
                world.disk.faults.fail_write(random.randint(1, 8), path=".log")
            some_appends(world, random.randint(5, 40))
            world.disk.faults.clear()  # one at a time: a segment that fails while it is rewritten has failed for good
            world.settle(1000)
        demand_life(world)
        some_appends(world, random.randint(0, 20))
        restart(world, random)


@seeds()
def test_segments_that_keep_failing_lose_nothing(seed: int) -> None:
    world = LogWorld(seed, inline=seed % 2 == 0)
    random = world.random
    some_appends(world, random.randint(5, 40))
    broken = random.choice(world.models)
    world.disk.faults.fail_sync(random.randint(1, 6), path=world.store.directory_of(broken.key), count=None)
    some_appends(world, random.randint(20, 60))
    world.disk.faults.clear()
    some_appends(world, random.randint(0, 20))
    restart(world, random)
    demand_life(world)


@seeds()
def test_a_journal_that_fails_acknowledges_nothing_any_more(seed: int) -> None:
    world = LogWorld(seed, inline=seed % 2 == 0)
    random = world.random
    some_appends(world, random.randint(5, 40))
    world.disk.faults.fail_write(random.randint(1, 6), path="/journal/", count=None)
    some_appends(world, random.randint(20, 60))
    world.settle(1000)
    journal = world.store.shared.journal
    assert journal is not None
    if journal.failed is not None:
        acknowledged = [world.log(model).acknowledged_end for model in world.models]
        some_appends(world, 40)
        world.settle(1000)
        for model, before in zip(world.models, acknowledged, strict=True):
            log = world.log(model)
            assert log.acknowledged_end == before if model.is_disk else log.acknowledged_end == log.end_offset
            demand_all_is_read(world, model)
    restart(world, random)
    demand_life(world)


@seeds()
def test_queues_that_stand_still_delay_and_lose_nothing(seed: int) -> None:
    world = LogWorld(seed)
    random = world.random
    for _ in range(3):
        for _ in range(random.randint(1, 4)):
            queue = random.choice(QUEUES)
            world.disk.stall(queue)
            some_appends(world, random.randint(5, 40))
            if random.random() < 0.7:
                world.disk.release(queue)
        if random.random() < 0.5:
            for queue in QUEUES:
                world.disk.release(queue)
            demand_life(world)
        restart(world, random)
    demand_life(world)


@seeds()
def test_a_retention_of_seconds_with_crashes(seed: int) -> None:
    """Segments expire during the run; the start, the producers and the rest of the log survive every crash."""
    world = LogWorld(seed, inline=seed % 2 == 0, retention_ms=3000)
    random = world.random
    for _ in range(4):
        for _ in range(random.randint(3, 10)):
            some_appends(world, random.randint(1, 15))
            world.settle(random.choice([10.0, 500.0, 2000.0]))
            for model in world.models:
                if random.random() < 0.7:
                    world.retain(model)
                    world.steps(random.randint(0, 12))
        if random.random() < 0.3:
            world.disk.faults.fail_sync(random.randint(1, 6), path="/data/checkpoint")
            world.flush(everything=True)
            world.steps(random.randint(0, 30))
        restart(world, random)
    assert not any(world.log(model).damages for model in world.models)
    demand_life(world)
