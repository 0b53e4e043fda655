"""Faults that strike where it hurts: when a broker takes a rare branch of its code (`ottla.reach`).

    faults = StateFaults(seed, world, programs, fault_counts, survivors)
    with faults.observing():
        faults.ends_s = ...

A plan of faults by the clock rarely hits a moment that lasts a millisecond. Here the moment itself draws the fault: the
broker dies, loses power, is cut off from the others, stops gracefully, or loses the replies of the coordination store.
All choices come from the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from random import Random

from ottla import reach
from ottla.reach import Branch, branch
from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.disk_fault_plan import ActiveDiskFaults, DiskFaultKind, PlannedDiskFault
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld
from tests.simulation.survivors import Survivors

SEEDS_FROM = 200_000
"""Seeds below were pinned before there were such faults, and stay as they are. Long logs have them with every seed. The
same seeds have everything else that was added to a kind of simulation after seeds of it were pinned."""
SLOW_S, SLOW_MS = 6.0, 3000.0
DELAYS_S = (0.0, 0.0, 0.0005, 0.005, 0.05)
KILL, POWER_CUT, CUT, STOP, LOST_REPLIES, PAUSE = "kill", "power cut", "cut", "stop", "lost replies", "pause"
FULL_DISK, FAILING_SEGMENT, FAILING_JOURNAL = "full disk", "failing segment", "failing journal"
DISK_FAULTS: Mapping[str, tuple[DiskFaultKind, str]] = {
    FULL_DISK: (DiskFaultKind.FULL_DISK, ""),
    FAILING_SEGMENT: (DiskFaultKind.FAILED_SYNCS, ".log"),
    FAILING_JOURNAL: (DiskFaultKind.FAILED_WRITES, "journal"),
}
ALONE = "left alone with a slow disk"
CRASHES = (KILL, KILL, POWER_CUT)
TRIGGERS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "a segment is rolled": (0.02, (*CRASHES, CUT)),
    "a log is truncated": (0.3, CRASHES),
    "a log is truncated across a segment boundary": (0.5, CRASHES),
    "a log is reset": (0.3, CRASHES),
    "retention moves the log start": (0.03, (*CRASHES, CUT)),
    "expired segments are removed": (0.03, CRASHES),
    "a compaction swap is decided": (0.1, CRASHES),
    "compacted segments are swapped in": (0.1, CRASHES),
    "a follower takes over the start of its leader's log": (0.03, CRASHES),
    "DeleteRecords waits for a replica": (0.05, (*CRASHES, CUT)),
    "a coordinator begins to load": (0.1, (*CRASHES, CUT, PAUSE)),
    "a coordinator appends a decision": (0.01, (*CRASHES, CUT, STOP)),
    "a request arrives while a coordinator loads": (0.1, (KILL, PAUSE)),
    "an ISR change is sent": (0.3, (LOST_REPLIES, LOST_REPLIES, LOST_REPLIES, KILL, STOP)),
    "the outcome of an ISR change is unknown": (0.3, (LOST_REPLIES, KILL)),
    "a lease is lost": (0.2, (KILL, LOST_REPLIES)),
    "leadership is handed over before a stop": (0.2, (KILL, POWER_CUT)),
    "the journal is replayed into a segment": (0.01, CRASHES),
    "a follower diverges from its leader": (0.2, (*CRASHES, CUT)),
    "a consumer is sent to a follower": (0.01, (KILL, CUT)),
}
"""How likely each branch draws a fault, and which."""
LATER_TRIGGERS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "a segment is rolled": (0.03, (*CRASHES, CUT, FULL_DISK, FAILING_SEGMENT, FAILING_SEGMENT)),
    "a log is deleted": (0.2, CRASHES),
    "a log is truncated": (0.4, (*CRASHES, FULL_DISK, FAILING_JOURNAL, ALONE, ALONE)),
    "a log is truncated below its recovery point": (0.5, (*CRASHES, FULL_DISK)),
    "a start lowers a recovery point to a truncation in the journal": (0.5, CRASHES),
    "a journaled append is undone by a later truncation": (0.02, CRASHES),
    "a segment fails and is rewritten from the journal": (0.3, (*CRASHES, FULL_DISK, FAILING_SEGMENT)),
    "a rewritten segment takes the place of the failed one": (0.5, CRASHES),
    "the records of a failed log are rescued from the journal": (0.5, CRASHES),
    "rescued records are replayed at a start": (0.5, CRASHES),
    "producer states ahead of their log are rebuilt": (0.3, CRASHES),
    "a part of the space reserve is used": (0.1, CRASHES),
    "the start of a cache log moves without a flush": (0.05, CRASHES),
    "an index is rebuilt at a start": (0.5, CRASHES),
    "a coordinator appends a decision": (0.02, (*CRASHES, CUT, STOP, PAUSE, FULL_DISK, FAILING_JOURNAL)),
    "a loading coordinator waits for the high watermark": (0.05, (*CRASHES, CUT, PAUSE)),
    "a coordinator cannot tell whether a decision is committed": (0.2, (*CRASHES, CUT)),
    "a coordinator finishes a transaction that another one decided": (0.3, (*CRASHES, CUT)),
    "a marker arrives while a coordinator loads": (0.5, CRASHES),
    "a marker that is in the log arrives again": (0.2, CRASHES),
    "markers are sent again": (0.05, (*CRASHES, CUT)),
    "a duplicate waits for the acknowledgement of its original": (0.1, (*CRASHES, CUT)),
    "the refusal of a conditional append waits for its cause": (0.02, (*CRASHES, CUT, PAUSE)),
    "a fenced writer is told only when the fence is committed": (0.1, (*CRASHES, CUT, PAUSE)),
    "an eligible replica is elected": (0.3, (*CRASHES, CUT)),
    "a replica stays eligible after it left the ISR": (0.05, (KILL, CUT, LOST_REPLIES)),
    "a memory topic begins anew": (0.3, (KILL, LOST_REPLIES)),
    "a broker is elected while it truncates its log": (0.3, CRASHES),
    "a write to the store is repeated because its outcome is unknown": (0.05, (LOST_REPLIES, KILL)),
    "the outcome of a registration is unknown": (0.3, (LOST_REPLIES, KILL)),
    "the outcome of a controller's write is unknown": (0.3, (LOST_REPLIES, KILL)),
    "an incarnation is resumed after its lease was lost": (0.2, (KILL, LOST_REPLIES)),
    "a request finds that the lease has expired": (0.2, (KILL, CUT)),
}
"""Triggers of seeds from `SEEDS_FROM` on, in addition to or instead of those above."""
_STOPPED = branch("a broker stops gracefully", __name__)


class StateFaults:
    def __init__(
        self,
        seed: int,
        world: SimWorld,
        programs: Mapping[str, ClusterProgram],
        fault_counts: Counter[str],
        survivors: Survivors,
        *,
        without: Collection[str] = (),
    ) -> None:
        """`without` names faults that this simulation does not allow."""
        self._rng = Random(f"{seed}/state faults")
        self._world = world
        self._programs = programs
        self._fault_counts = fault_counts
        self._survivors = survivors
        self._without = without
        self._triggers = TRIGGERS if seed < SEEDS_FROM else {**TRIGGERS, **LATER_TRIGGERS}
        self._left = self._rng.choice((2, 5, 10))
        self.disks: ActiveDiskFaults | None = None
        """Takes the faults of disks, once the planned ones have started."""
        self.ends_s = 0.0
        """When the last of them may strike."""

    @property
    def is_active(self) -> bool:
        return self._world.now_s < self.ends_s

    @contextmanager
    def observing(self) -> Iterator[None]:
        reach.observe(self._on_reached)
        try:
            yield
        finally:
            reach.observe(None)

    def _on_reached(self, reached: Branch) -> None:
        running = self._world.running
        if not self.is_active or not self._left or running is None or reached.name not in self._triggers:
            return
        host = self._world.hosts[running.host.name]
        share, kinds = self._triggers[reached.name]
        kinds = tuple(kind for kind in kinds if kind not in self._without)
        if not kinds or host.name not in self._programs or self._rng.random() > share:
            return
        self._left -= 1
        kind = self._rng.choice(kinds)
        if kind == LOST_REPLIES:
            self._strike(kind, host, host.incarnation, reached.name)
        else:
            self._world.after(self._rng.choice(DELAYS_S), self._strike, kind, host, host.incarnation, reached.name)

    def _strike(self, kind: str, host: SimHost, incarnation: int, where: str) -> None:
        if not self.is_active or not host.is_running or host.incarnation != incarnation or host.is_paused:
            return
        self._world.note(f"{kind} of {host.name}, because {where}")
        self._fault_counts[f"{kind} because {where}"] += 1
        for_s = self._rng.choice((0.2, 1.0, 3.0))
        match kind:
            case "kill":
                host.kill()
                self._world.after(for_s, self._boot, host)
            case "power cut":
                host.cut_power(self._rng.choice(("some", "all", "none")))
                self._world.after(for_s, self._boot, host)
            case "cut":
                others = [name for name in self._programs if name != host.name]
                self._world.after(for_s, self._world.network.cut([host.name], others).heal)
            case "pause":
                host.pause()
                self._world.after(for_s, self._resume, host, incarnation)
            case "full disk" | "failing segment" | "failing journal":
                if self.disks is not None:
                    disk_kind, path = DISK_FAULTS[kind]
                    amount = self._rng.choice((0.0, 1.0))
                    self.disks.strike(PlannedDiskFault(0.0, for_s, disk_kind, host.name, path, amount))
            case "left alone with a slow disk":
                self._leave_alone(host, for_s)
            case "stop":
                host.spawn(self._stop(host, for_s), name="stop")
            case _:
                client = self._programs[host.name].client
                if client is not None:
                    client.lose_replies(self._rng.choice((1, 2, 3, 5)))

    def _leave_alone(self, host: SimHost, for_s: float) -> None:
        """Kills the other brokers while this one waits for its disk, so that it may be elected in the middle of its
        work."""
        if self.disks is not None:
            self.disks.strike(PlannedDiskFault(0.0, SLOW_S, DiskFaultKind.SLOW_SYNCS, host.name, "", SLOW_MS))
        for name in self._programs:
            other = self._world.hosts[name]
            if other is not host and other.is_running:
                other.kill()
                self._world.after(for_s, self._boot, other)

    async def _stop(self, host: SimHost, for_s: float) -> None:
        program, incarnation = self._programs[host.name], host.incarnation
        try:
            await program.stop()
        except OSError as error:  # its disk fails: it ends all the same
            self._world.note(f"{host.name} stops: {error}")
        else:
            if program.is_stopping:
                _STOPPED()
                self._survivors.on_clean_stop(host)
        if program.is_stopping:
            self._world.after(0.0, self._end, host, incarnation, for_s)

    def _end(self, host: SimHost, incarnation: int, for_s: float) -> None:
        if host.is_running and host.incarnation == incarnation:
            host.kill()
            self._world.after(for_s, self._boot, host)

    def _boot(self, host: SimHost) -> None:
        if not host.is_running:
            host.boot()

    def _resume(self, host: SimHost, incarnation: int) -> None:
        if host.is_running and host.incarnation == incarnation:
            host.resume()
