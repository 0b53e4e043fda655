"""Simulated machines, each with its own clock, one process at a time, and perhaps a disk.

    host.pause(), host.resume()   SIGSTOP and SIGCONT: the process stops, its kernel and the world continue
    host.kill()                   kill -9: the process is gone, its page cache and its network name are not
    host.cut_power()              the machine is gone: peers hear nothing at all, unsynced bytes are lost
    host.boot()                   a new process, on what its disk kept

Whatever a dead process leaves behind never acts again. Its tasks are abandoned, not cancelled, so no `finally` block
runs while the world continues, and its loop, sockets and disk accept nothing from it any more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.sim.disk import Keep, SimDisk
from ottla.sim.host_time import HostTime
from ottla.sim.loop import SimLoop
from ottla.sim.turns import HostClock

if TYPE_CHECKING:
    from ottla.sim.network import SimNetwork
    from ottla.sim.scheduler import Scheduler
    from ottla.sim.sockets import SimSocket

T = TypeVar("T")
_ASYNCIO = os.path.dirname(asyncio.__file__)
Program = Callable[["SimHost"], Coroutine[Any, Any, None]]

UPTIME_S_MAX = 50_000.0
"""Monotonic clocks start at random values, so that those of two hosts are never comparable by chance."""
WALL_START_S = 1_700_000_000.0


class SimHost(HostTime):
    """A simulated machine."""

    def __init__(
        self,
        world: Scheduler,
        network: SimNetwork,
        name: str,
        program: Program | None,
        *,
        skew_ms: float = 0,
        drift_ppm: float = 0,
    ) -> None:
        monotonic_s = world.rng.random() * UPTIME_S_MAX
        wall_s = WALL_START_S + skew_ms / 1000 + world.now_s
        super().__init__(world, name, wall_s=wall_s, monotonic_s=monotonic_s, drift_ppm=drift_ppm)
        self.world = world
        self._network = network
        self.program = program
        self.power_cuts = 0
        self.is_up = False
        """True while the machine is on; says nothing about the process."""
        self.sockets: dict[SimSocket, None] = {}
        """The open sockets of its process."""
        self.loop: SimLoop
        self.clock: HostClock
        self._disk: SimDisk | None = None
        self._disk_seed = 0
        self._running = False
        self._spawned: dict[asyncio.Task[Any], None] = {}

    def __repr__(self) -> str:
        return f"<host {self.name}>"

    def set_drift(self, drift_ppm: float) -> None:
        """Makes both clocks gain this many microseconds a second from now on."""
        super().set_drift(drift_ppm)
        if self._running:
            self.loop.look_again()

    # -- life cycle ------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._running

    @property
    def is_paused(self) -> bool:
        """Whether the host has a process that is paused."""
        return self._running and self.loop.is_paused

    def boot(self) -> None:
        """Starts the machine if it is off, and a new process on it that runs the host's program."""
        if self._running:
            raise RuntimeError(f"{self.name} runs already")
        self.incarnation += 1
        self._running = True
        self.loop = SimLoop(  # type: ignore[abstract] # the missing methods raise NotImplementedError
            self.world, self._network, self
        )
        self.clock = HostClock(self, self.loop)
        if self._disk is not None:
            self._disk = _moved_to(self.clock, self._disk)
        self.world.note(f"{self.name} boots ({self.incarnation})")
        if not self.is_up:
            self.is_up = True
            self._network.on_host_up(self)
        if self.program is not None:
            self.spawn(self.program(self), name="program")

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Starts a task on this host. If the task fails, the run fails."""
        task = self.loop.create_task(work, name=name)
        self._spawned[task] = None  # asyncio keeps only weak references to tasks
        task.add_done_callback(self._on_spawned_done)
        return task

    def _on_spawned_done(self, task: asyncio.Task[Any]) -> None:
        self._spawned.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.fail(self.name, f"the task {task.get_name()} failed", error)

    def pause(self) -> None:
        """Stops the process, as SIGSTOP does."""
        if self._running:
            self.world.note(f"{self.name} pauses")
            self.loop.pause()

    def resume(self) -> None:
        """Continues the process, as SIGCONT does."""
        if self._running and self.loop.is_paused:
            self.world.note(f"{self.name} resumes")
            self.loop.resume()

    def kill(self) -> None:
        """Kills the process. As for any process, the kernel closes its sockets and keeps its page cache."""
        if self._running:
            self.world.note(f"{self.name} is killed")
            self._bury("all")
            self._network.on_process_gone(self)

    def cut_power(self, keep: Keep = "some") -> None:
        """Turns the machine off. `keep` says what the disk keeps of its unsynced bytes. Works without a
        process, too."""
        if not self.is_up:
            return
        self.world.note(f"{self.name} loses power ({keep})")
        self.power_cuts += 1
        self.is_up = False
        if self._running:
            self._bury(keep)
        elif self._disk is not None:
            self._disk = self._disk.crash(self._next_disk_seed(), keep=keep)
        self._network.on_power_lost(self)

    def _bury(self, keep: Keep) -> None:
        self._running = False
        self.loop.die()
        if self._disk is not None:
            self._disk = self._disk.crash(self._next_disk_seed(), keep=keep)

    # -- disk ------------------------------------------------------------------------------------------------

    def add_disk(self, *, capacity_bytes: int | None = None) -> SimDisk:
        """Adds a new, empty disk for the current process and its successors."""
        self._disk = SimDisk(self.clock, seed=self._next_disk_seed(), capacity_bytes=capacity_bytes)
        return self._disk

    @property
    def has_disk(self) -> bool:
        """Whether a disk was added."""
        return self._disk is not None

    @property
    def disk(self) -> SimDisk:
        """The disk; a new object after each crash."""
        assert self._disk is not None, f"{self.name} has no disk: call add_disk"
        return self._disk

    def _next_disk_seed(self) -> int:
        self._disk_seed = self.world.rng.getrandbits(32)
        return self._disk_seed

    # -- diagnostics -------------------------------------------------------------------------------------------

    def pending_tasks(self) -> Iterator[str]:
        """Yields each unfinished task of the process, with the line at which it waits."""
        if self._running:
            state = " (paused)" if self.loop.is_paused else ""
            for task in self.loop.pending_tasks():
                yield f"{self.name}{state}: {task.get_name()} {_place_of(task)}"


def _moved_to(clock: HostClock, disk: SimDisk) -> SimDisk:
    """Moves a surviving disk to the clock of a new process."""
    moved = SimDisk(clock, seed=disk.seed, capacity_bytes=disk.capacity_bytes, alignment=disk.state.alignment)
    moved.state.tree = disk.state.tree
    return moved


def _place_of(task: asyncio.Task[Any]) -> str:
    """Describes the chain of awaiting coroutines, and the last line that is not in asyncio."""
    awaited: Any = task.get_coro()
    names: list[str] = []
    line = ""
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        names.append(awaited.__qualname__)
        if not line or not frame.f_code.co_filename.startswith(_ASYNCIO):
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        awaited = awaited.cr_await
    return f"in {' > '.join(names)}, {line}"
