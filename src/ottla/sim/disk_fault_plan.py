"""A plan of disk faults: which disk fails when. Drawn from a seed before anything runs, like a `FaultPlan`.

    plan = DiskFaultPlan.drawn(seed, servers=["b1", "b2", "b3"], duration_s=30, count=4)
    troubles = plan.start(world, Surroundings(...))
    troubles.apply_to(host)       # whenever a process starts there: a bad disk stays bad

Slow and failing disks may strike at any time, because they lose nothing that was synced. Bit flips and wipes destroy
data, so each of them waits until `may_destroy` confirms that nothing depends on that disk alone. A fault that would
have to wait beyond the end of the plan does not happen. Errors end with a restart, as an operator would do it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from ottla.sim.content import FileContent
from ottla.sim.disk import QueueName
from ottla.sim.tree import Directory

if TYPE_CHECKING:
    from ottla.sim.disk import SimDisk
    from ottla.sim.hosts import SimHost
    from ottla.sim.world import SimWorld

DATA_DIR = "/data"
RETRY_S = 0.1
SYNCED_QUEUES: tuple[QueueName, ...] = ("journal", "segment", "sync")


class DiskFaultKind(Enum):
    """The kind of a disk fault. Only those in `DESTRUCTIVE` lose synced data."""

    SLOW_SYNCS = "slow syncs"
    FULL_DISK = "full disk"
    FAILED_WRITES = "failed writes"
    FAILED_SYNCS = "failed syncs"
    BIT_FLIPS = "bit flips"
    WIPED_DISK = "wiped disk"


DESTRUCTIVE = frozenset({DiskFaultKind.BIT_FLIPS, DiskFaultKind.WIPED_DISK})
ERRORS = frozenset({DiskFaultKind.FAILED_WRITES, DiskFaultKind.FAILED_SYNCS})


@dataclass(frozen=True, slots=True)
class PlannedDiskFault:
    """One fault of one host's disk."""

    at_s: float
    duration_s: float
    kind: DiskFaultKind
    host: str
    path: str = ""
    """Substring of the paths that errors affect."""
    amount: float = 0.0
    """Milliseconds, a number of calls, or a number of bytes, depending on the kind."""

    @property
    def ends_s(self) -> float:
        """Planned end in seconds, from the start of the plan."""
        return self.at_s + self.duration_s

    def __str__(self) -> str:
        path = f" of *{self.path}*" if self.path else ""
        amount = f" {self.amount:g}" if self.amount else ""
        return f"{self.at_s:8.3f} s to {self.ends_s:8.3f} s: {self.kind.value} {self.host}{path}{amount}"


@dataclass(frozen=True, slots=True)
class DiskFaultHooks:
    """The callbacks through which a plan interacts with the run that it disturbs."""

    may_destroy: Callable[[], bool]
    on_destroyed: Callable[[PlannedDiskFault], None]
    """Called before the next process starts on that disk."""
    on_struck: Callable[[PlannedDiskFault], None]
    may_flip_in: Callable[[str], bool]
    """Returns whether a bit may flip in this path. Damage at the end of a journal, or of a log without one, cannot be
    told from a torn write."""
    set_speed: Callable[[SimHost], None]
    """Resets a disk to its normal speed."""


@dataclass(frozen=True, slots=True)
class DiskFaultPlan:
    """The disk faults of one run."""

    faults: tuple[PlannedDiskFault, ...] = ()

    @property
    def ends_s(self) -> float:
        """Time from which on no fault is active."""
        return max((fault.ends_s for fault in self.faults), default=0.0)

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))

    @classmethod
    def drawn(
        cls,
        seed: int,
        *,
        servers: Sequence[str],
        duration_s: float,
        count: int,
        kinds: Sequence[DiskFaultKind] = tuple(DiskFaultKind),
    ) -> DiskFaultPlan:
        """Draws a plan from a seed."""
        rng = Random(f"{seed}/disk faults")
        chosen = [_drawn(rng, rng.choice(kinds), servers, duration_s) for _ in range(count)]
        return cls(tuple(sorted(chosen, key=lambda fault: fault.at_s)))

    def start(self, world: SimWorld, surroundings: DiskFaultHooks) -> ActiveDiskFaults:
        """Starts the plan; its times count from now."""
        return ActiveDiskFaults(world, self, surroundings)


def _drawn(rng: Random, kind: DiskFaultKind, servers: Sequence[str], duration_s: float) -> PlannedDiskFault:
    at_s = rng.random() * duration_s * 0.9
    lasts_s = min(rng.choice((0.3, 2.0, 6.0)) * (0.5 + rng.random()), max(duration_s - at_s, 0.1))
    path, amount = "", 0.0
    if kind is DiskFaultKind.SLOW_SYNCS:
        amount = rng.choice((300.0, 1000.0, 4000.0))
    elif kind in ERRORS:
        path, amount = rng.choice(("journal", ".log", "")), rng.choice((1, 1, 0))
    elif kind is DiskFaultKind.FULL_DISK:
        amount = rng.choice((0.0, 20_000.0))
    elif kind is DiskFaultKind.BIT_FLIPS:
        path, amount = ".log", rng.choice((1, 3))
    return PlannedDiskFault(at_s, lasts_s, kind, rng.choice(servers), path, amount)


class ActiveDiskFaults:
    """A plan in progress."""

    def __init__(self, world: SimWorld, plan: DiskFaultPlan, surroundings: DiskFaultHooks) -> None:
        self._world = world
        self._run = surroundings
        self._rng = Random(f"{world.seed}/disk troubles")
        self._active: dict[str, list[PlannedDiskFault]] = {}
        self._ends_s = world.now_s + plan.ends_s
        for fault in plan.faults:
            world.after(fault.at_s, self.strike, fault)

    def is_bad(self, host: SimHost) -> bool:
        """Returns whether a slow, full or failing disk is simulated on this host now."""
        return bool(self._active.get(host.name))

    def apply_to(self, host: SimHost) -> None:
        """Applies active faults to the disk of a process that starts now. A full disk stays full without this."""
        for fault in self._active.get(host.name, ()):
            self._make_bad(host.disk, fault)

    def strike(self, fault: PlannedDiskFault) -> None:
        """Begins a fault now. It ends by itself."""
        world, host = self._world, self._world.hosts[fault.host]
        if fault.kind in DESTRUCTIVE:
            if host.is_running and self._run.may_destroy():
                self._destroy(host, fault)
            elif world.now_s + RETRY_S < self._ends_s:
                world.after(RETRY_S, self.strike, fault)
            return
        world.note(f"disk fault: {fault}")
        self._run.on_struck(fault)
        self._active.setdefault(fault.host, []).append(fault)
        if host.has_disk:
            self._make_bad(host.disk, fault)
        world.after(fault.duration_s, self._heal, host, fault)

    def _make_bad(self, disk: SimDisk, fault: PlannedDiskFault) -> None:
        match fault.kind:
            case DiskFaultKind.SLOW_SYNCS:
                for queue in SYNCED_QUEUES:
                    disk.slow_down(queue, fault.amount)
            case DiskFaultKind.FULL_DISK:
                disk.capacity_bytes = disk.used_bytes + int(fault.amount)
            case DiskFaultKind.FAILED_WRITES:
                disk.faults.fail_write(path=fault.path, count=int(fault.amount) or None, error=errno.EIO)
            case DiskFaultKind.FAILED_SYNCS:
                disk.faults.fail_sync(path=fault.path, count=int(fault.amount) or None, error=errno.EIO)

    def _heal(self, host: SimHost, fault: PlannedDiskFault) -> None:
        self._world.note(f"disk fault ends: {fault}")
        left = self._active[host.name]
        left.remove(fault)
        disk = host.disk
        disk.faults.clear()
        disk.capacity_bytes = None
        self._run.set_speed(host)
        for other in left:
            self._make_bad(disk, other)
        if fault.kind in ERRORS and host.is_running:
            host.kill()
            self._boot_later(host, 0.2)

    # -- destruction -------------------------------------------------------------------------------------------

    def _destroy(self, host: SimHost, fault: PlannedDiskFault) -> None:
        self._world.note(f"disk fault: {fault}")
        host.kill()
        self._run.on_struck(fault)
        if fault.kind is DiskFaultKind.WIPED_DISK:
            host.disk.wipe(DATA_DIR)
        else:
            self._flip_bits(host.disk, fault)
        self._run.on_destroyed(fault)
        self._boot_later(host, min(fault.duration_s, 3.0))

    def _flip_bits(self, disk: SimDisk, fault: PlannedDiskFault) -> None:
        found = [path for path, size in files_under(disk, DATA_DIR) if fault.path in path and size]
        paths = [path for path in found if self._run.may_flip_in(path)]
        for _ in range(int(fault.amount) if paths else 0):
            path = self._rng.choice(paths)
            size = len(disk.state.tree.file(path).current)
            offset = self._rng.randrange(size)
            self._world.note(f"a bit flips in {path} at {offset} of {size}")
            disk.damage(path, offset, 1 << self._rng.randrange(8))

    def _boot_later(self, host: SimHost, delay_s: float) -> None:
        self._world.after(delay_s, partial(_boot, host))


def _boot(host: SimHost) -> None:
    if not host.is_running:
        host.boot()


def files_under(disk: SimDisk, path: str) -> list[tuple[str, int]]:
    """Returns all files with their sizes, ordered by name."""
    found: list[tuple[str, int]] = []
    for name, node in sorted(disk.state.tree.directory(path).current.items()):
        if isinstance(node, Directory):
            found += files_under(disk, f"{path}/{name}")
        elif isinstance(node, FileContent):
            found.append((f"{path}/{name}", len(node.current)))
    return found
