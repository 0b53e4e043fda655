"""Cuts the power at every operation of a compaction and of the following startup (safety: after-failover)."""

from __future__ import annotations

import pytest

from ottla.sim.disk import Keep
from tests.support.compacted_logs import CompactedLog, Producer
from tests.support.power_cut import PowerCut, PowerCutError

KEEPS: list[Keep] = ["none", "some", "all"]
CLASSES = ["disk", "cache"]


class World(CompactedLog):
    """Two producers write repeatedly to a few keys and delete some; then the log is compacted twice."""

    def __init__(self, durability: str, seed: int = 0) -> None:
        super().__init__(durability, seed, delete_retention_ms="1000")
        self.sequences = [0, 0]
        self._fill(26)
        self.bench.flush()

    def _fill(self, batches: int) -> None:
        for number in range(batches):
            key = b"key %d" % (number * number % 5)
            value = None if number % 13 == 5 else b"%d" % number * 10
            producer = number % 7 == 0
            rows = [(key, value), (b"once %d" % (number % 7), b"1")]
            self.append(rows, producer=Producer(producer, 0, self.sequences[producer]), compression=number % 5)
            self.sequences[producer] += 2
        self.roll()

    def go_on(self) -> None:
        self.compact()
        self._fill(9)
        self.bench.clock.advance(2000)
        self.compact()

    def check(self) -> None:
        super().check()
        for producer_id in (0, 1):
            entry = self.bench.log().producers.get(producer_id)
            assert entry is not None
            expected = self.sequences[producer_id] - 1
            assert entry.batches[-1].last_sequence == expected or self.bench.log().end_offset < len(self.appended)


def operations(durability: str) -> int:
    world = World(durability)
    power = PowerCut(world.bench.disk)
    world.go_on()
    total = power.operations
    world.check()
    assert len(world.records()) < len(world.appended) / 2
    return total


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("keep", KEEPS)
def test_a_crash_at_any_operation(durability: str, keep: Keep) -> None:
    total = operations(durability)
    assert total > 80
    for nth in range(1, total + 1):
        world = World(durability)
        PowerCut(world.bench.disk, nth)
        with pytest.raises(PowerCutError):
            world.go_on()
        end_offset = world.bench.log().acknowledged_end if durability == "disk" or keep == "all" else 0
        world.bench.crash(keep, seed=nth)
        world.start()
        assert world.bench.log().end_offset >= end_offset
        world.check()
        assert not [name for name in world.bench.names() if name == "swap" or name.endswith(".compacted")]
