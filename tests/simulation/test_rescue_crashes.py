"""A log fails for good and is rescued; the power fails at every operation of the rescue and the next startup."""

from __future__ import annotations

import pytest

from ottla.broker.storage.journal import JournalLimits
from ottla.sim.disk import Keep
from tests.support.power_cut import PowerCut, PowerCutError
from tests.support.sim_logs import LogBench, key_of

RING = JournalLimits(ring_bytes_max=64 * 1024, file_bytes_max=16 * 1024, group_bytes_max=8 * 1024)
KEEPS: list[Keep] = ["none", "some", "all"]


class FailingLog:
    """Log 0 fails, log 1 continues. Acknowledged records must survive any crash."""

    def __init__(self, flushed: int) -> None:
        self.bench = LogBench("disk", "disk", limits=RING)
        self.appended: list[list[bytes]] = [[], []]
        self._fill(0, flushed)
        if flushed:
            self.bench.flush()
        self._fill(0, 8)
        self.bench.disk.faults.fail_sync(path=self.bench.store.directory_of(key_of(0)), count=None)

    def _fill(self, number: int, count: int) -> None:
        for _ in range(count):
            batch = self.bench.append(number)
            if isinstance(batch, bytes):
                self.appended[number].append(batch)
        self.bench.settle()

    def fail(self) -> None:
        """Fails twice, so that there is also a second file of pending batches."""
        bench = self.bench
        bench.disk.stall("journal")
        self._fill(0, 1)
        bench.flusher.run(everything=True)
        bench.settle(1000)
        bench.disk.release("journal")
        bench.settle()
        self._fill(1, 10)
        bench.flusher.run(everything=True)
        bench.settle(1000)
        bench.log(0).advance_start(2, lambda _: None)
        self._fill(1, 10)
        bench.flusher.run(everything=True)
        bench.settle()

    def crash(self, keep: Keep, seed: int) -> list[int]:
        """Returns the acknowledged ends."""
        ends = [self.bench.log(number).acknowledged_end for number in range(2)]
        self.bench.crash(keep, seed=seed)
        return ends

    def check(self, acknowledged: list[int]) -> None:
        for number, end in enumerate(acknowledged):
            log = self.bench.log(number)
            assert log.failed is None
            assert log.damages == []
            assert log.end_offset >= end
            assert self.bench.read_all(number) == self.appended[number][log.start_offset : log.end_offset]


def operations(flushed: int) -> int:
    world = FailingLog(flushed)
    power = PowerCut(world.bench.disk)
    world.fail()
    assert world.bench.log(0).failed is not None
    return power.operations


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("flushed", [0, 12])
def test_a_crash_at_any_operation_of_a_rescue(flushed: int, keep: Keep) -> None:
    for nth in range(1, operations(flushed) + 1):
        world = FailingLog(flushed)
        PowerCut(world.bench.disk, nth)
        with pytest.raises(PowerCutError):
            world.fail()
        acknowledged = world.crash(keep, nth)
        world.bench.start()
        world.check(acknowledged)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("flushed", [0, 12])
def test_a_crash_at_any_operation_of_the_start_that_takes_it_back(flushed: int, keep: Keep) -> None:
    nth, started = 0, False
    while not started:
        nth += 1
        world = FailingLog(flushed)
        world.fail()
        acknowledged = world.crash(keep, nth)
        power = PowerCut(world.bench.disk, nth)
        try:
            world.bench.start()
            power.call_off()
            started = True
        except PowerCutError:
            world.bench.crash(keep, seed=nth)
            world.bench.start()
        world.check(acknowledged)
    assert nth > 50, "the start was over before anything could go wrong"
