"""Cuts the power at every operation of a truncation, of later operations, and of the following startup.

(safety: journal-order, recovered-log)
"""

from __future__ import annotations

import pytest

from ottla.broker.storage.truncation import Truncation
from ottla.sim.disk import Keep
from tests.support.power_cut import PowerCut, PowerCutError
from tests.support.sim_logs import LogBench

KEEPS: list[Keep] = ["none", "some", "all"]
CUT = 17
SHAPES = [
    pytest.param(0, 0, None, id="nothing flushed"),
    pytest.param(10, 0, None, id="flushed below the cut"),
    pytest.param(25, 0, None, id="flushed between the cut and the end"),
    pytest.param(40, 0, None, id="flushed above the cut"),
    pytest.param(40, 5, None, id="flushed above, the start moved"),
    pytest.param(25, 0, 30, id="a reset inside the log"),
    pytest.param(25, 0, 100, id="a reset above the log"),
]


class CutLog:
    def __init__(self, flushed: int, start: int, reset: int | None) -> None:
        self.bench = LogBench("disk", seed=flushed)
        self.reset = reset
        self.cut = CUT if reset is None else reset
        self.before = self.bench.fill(batches=flushed)
        if flushed:
            self.bench.flush()
        self.before += self.bench.fill(batches=40 - flushed)
        if start:
            self.bench.log().advance_start(start, lambda _: None)
            self.bench.settle()
        self.after: list[bytes] = []
        self.is_cut = False
        self.acknowledged_end = 40

    def go_on(self) -> None:
        """Truncates, appends other batches, flushes, appends more."""
        self._truncate(self.cut)
        self._append(30)
        self.bench.flusher.run(everything=True)
        self.bench.settle()
        self._append(5)

    def _truncate(self, offset: int) -> None:
        def done(error: OSError | None) -> None:
            assert error is None
            self.is_cut = True

        resets = self.reset is not None
        Truncation(self.bench.log(), self.bench.flusher, offset, done, resets=resets).begin()
        self.bench.settle()

    def _append(self, count: int) -> None:
        for _ in range(count):
            batch = self.bench.append(value_bytes=150)
            assert isinstance(batch, bytes)
            self.after.append(batch)
            self.bench.settle(1)
        self.bench.settle()

    def crash(self, keep: Keep, seed: int) -> None:
        self.acknowledged_end = self.bench.log().acknowledged_end
        self.bench.crash(keep, seed=seed)

    def check(self) -> None:
        log = self.bench.log()
        assert log.damages == []
        found = self.bench.read_all()
        if self.is_cut:
            assert log.end_offset >= self.acknowledged_end
            kept = self.before[log.start_offset : self.cut] if self.reset is None else []
            assert found == (kept + self.after)[: log.end_offset - log.start_offset]
            assert log.start_offset == self.cut or self.reset is None
        elif log.end_offset == self.cut and self.reset is not None:
            assert found == []
        else:
            assert log.end_offset in (self.cut, 40)
            assert found == self.before[log.start_offset : log.end_offset]


def operations(flushed: int, start: int, reset: int | None) -> int:
    world = CutLog(flushed, start, reset)
    power = PowerCut(world.bench.disk)
    world.go_on()
    assert world.is_cut
    return power.operations


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(("flushed", "start", "reset"), SHAPES)
def test_a_crash_at_any_operation(flushed: int, start: int, reset: int | None, keep: Keep) -> None:
    total = operations(flushed, start, reset)
    assert total > 50
    for nth in range(1, total + 1):
        world = CutLog(flushed, start, reset)
        PowerCut(world.bench.disk, nth)
        with pytest.raises(PowerCutError):
            world.go_on()
        world.crash(keep, nth)
        world.bench.start()
        world.check()


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize(("flushed", "start", "reset"), SHAPES)
def test_a_crash_at_any_operation_of_the_start(flushed: int, start: int, reset: int | None, keep: Keep) -> None:
    """After a crash right behind the journal's entry, the startup has to truncate and is itself interrupted."""
    at_journal = 0
    for nth in range(1, operations(flushed, start, reset) + 1):
        world = CutLog(flushed, start, reset)
        PowerCut(world.bench.disk, nth)
        with pytest.raises(PowerCutError):
            world.go_on()
        world.crash("all", nth)
        world.bench.start()
        if not world.is_cut and world.bench.log().end_offset == world.cut:
            at_journal = nth
            break
    assert at_journal, "no crash left a truncation to be replayed"
    operation, started = 0, False
    while not started:
        operation += 1
        world = CutLog(flushed, start, reset)
        PowerCut(world.bench.disk, at_journal)
        with pytest.raises(PowerCutError):
            world.go_on()
        world.crash("all", at_journal)
        PowerCut(world.bench.disk, operation)
        try:
            world.bench.start()
            started = True
        except PowerCutError:
            world.bench.crash(keep, seed=operation)
            world.bench.start()
        world.check()
    assert operation > 10
