"""Plans of disk faults: they start, end, are delayed where they would destroy too much, and stay with the disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.sim.disk_fault_plan import (
    ActiveDiskFaults,
    DiskFaultHooks,
    DiskFaultKind,
    DiskFaultPlan,
    PlannedDiskFault,
    files_under,
)
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld

PATH = "/data/logs/0.log"


class Bench:
    """One host, whose program writes a file at each start if it is missing."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.may_destroy = True
        self.destroyed: list[PlannedDiskFault] = []
        self.struck: list[PlannedDiskFault] = []
        self.troubles: ActiveDiskFaults | None = None
        self.host = world.host("b", program=self._program)
        world.boot_all()
        world.run_for(0.1)

    async def _program(self, host: SimHost) -> None:
        if not host.has_disk:
            host.add_disk()
        if self.troubles is not None:
            self.troubles.apply_to(host)
        if not host.disk.files.exists(PATH):
            host.disk.files.make_dirs("/data/logs")
            host.disk.files.replace_file(PATH, bytes(1000))

    def start(self, *faults: PlannedDiskFault) -> None:
        surroundings = DiskFaultHooks(
            may_destroy=lambda: self.may_destroy,
            on_destroyed=self.destroyed.append,
            on_struck=self.struck.append,
            may_flip_in=lambda path: path == PATH,
            set_speed=lambda host: None,
        )
        self.troubles = DiskFaultPlan(faults).start(self.world, surroundings)

    def write(self) -> None:
        file = self.host.disk.files.open(PATH)
        file.write_at(0, [b"x"])
        file.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with SimWorld(1) as world:
        yield Bench(world)


def fault(kind: DiskFaultKind, at_s: float = 1.0, lasts_s: float = 2.0, amount: float = 0.0) -> PlannedDiskFault:
    path = ".log" if kind is not DiskFaultKind.FULL_DISK else ""
    return PlannedDiskFault(at_s, lasts_s, kind, "b", path, amount)


def test_writes_fail_until_the_restart_that_ends_the_fault(bench: Bench) -> None:
    bench.start(fault(DiskFaultKind.FAILED_WRITES))
    bench.write()
    bench.world.run_for(1.5)
    with pytest.raises(OSError, match="Input/output"):
        bench.write()
    bench.world.run_for(3)
    assert bench.host.incarnation == 2
    bench.write()
    assert len(bench.struck) == 1


def test_a_bad_disk_is_bad_for_the_next_process_too(bench: Bench) -> None:
    bench.start(fault(DiskFaultKind.FAILED_WRITES, lasts_s=10))
    bench.world.run_for(1.5)
    bench.host.kill()
    bench.host.boot()
    bench.world.run_for(0.1)
    with pytest.raises(OSError, match="Input/output"):
        bench.write()


def test_a_full_disk_has_space_again(bench: Bench) -> None:
    bench.start(fault(DiskFaultKind.FULL_DISK))
    bench.world.run_for(1.5)
    with pytest.raises(OSError, match="No space"):
        bench.host.disk.files.replace_file("/data/other", bytes(100_000))
    bench.world.run_for(3)
    bench.host.disk.files.replace_file("/data/other", bytes(100_000))
    assert bench.host.incarnation == 1, "nobody has to restart for that"


def test_what_destroys_waits_until_it_may(bench: Bench) -> None:
    bench.may_destroy = False
    bench.start(fault(DiskFaultKind.WIPED_DISK, lasts_s=10))
    bench.world.run_for(3)
    assert bench.destroyed == []
    bench.may_destroy = True
    bench.world.run_for(0.5)
    assert len(bench.destroyed) == len(bench.struck) == 1
    assert not bench.host.is_running
    assert files_under(bench.host.disk, "/data") == []
    bench.world.run_for(5)
    assert bench.host.is_running


def test_what_may_not_destroy_in_time_does_not_happen(bench: Bench) -> None:
    bench.may_destroy = False
    bench.start(fault(DiskFaultKind.BIT_FLIPS, amount=1))
    bench.world.run_for(5)
    bench.may_destroy = True
    bench.world.run_for(5)
    assert bench.struck == []
    assert bench.host.incarnation == 1


def test_bits_flip_where_they_may(bench: Bench) -> None:
    bench.host.disk.files.replace_file("/data/logs/1.log", bytes(1000))
    bench.start(fault(DiskFaultKind.BIT_FLIPS, amount=3))
    bench.world.run_for(6)
    assert any(bench.host.disk.files.read_file(PATH))
    assert not any(bench.host.disk.files.read_file("/data/logs/1.log"))
    assert bench.host.incarnation == 2


def test_one_seed_is_one_plan() -> None:
    plans = [DiskFaultPlan.drawn(7, servers=["a", "b"], duration_s=20, count=30) for _ in range(2)]
    assert plans[0] == plans[1] != DiskFaultPlan.drawn(8, servers=["a", "b"], duration_s=20, count=30)
    assert {planned.kind for planned in plans[0].faults} == set(DiskFaultKind)
    assert all(planned.ends_s <= 20.1 for planned in plans[0].faults)
    assert len(str(plans[0]).splitlines()) == 30
