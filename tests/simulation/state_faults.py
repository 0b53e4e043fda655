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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

from ottla import reach
from ottla.reach import Branch, branch
from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld
from tests.simulation.survivors import Survivors

SEEDS_FROM = 200_000
"""Seeds below were pinned before there were such faults, and stay as they are. Long logs have them with every seed."""
DELAYS_S = (0.0, 0.0, 0.0005, 0.005, 0.05)
KILL, POWER_CUT, CUT, STOP, LOST_REPLIES, PAUSE = "kill", "power cut", "cut", "stop", "lost replies", "pause"
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
_STOPPED = branch("a broker stops gracefully", __name__)


class StateFaults:
    def __init__(
        self,
        seed: int,
        world: SimWorld,
        programs: Mapping[str, ClusterProgram],
        fault_counts: Counter[str],
        survivors: Survivors,
    ) -> None:
        self._rng = Random(f"{seed}/state faults")
        self._world = world
        self._programs = programs
        self._fault_counts = fault_counts
        self._survivors = survivors
        self._left = self._rng.choice((2, 5, 10))
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
        if not self.is_active or not self._left or running is None or reached.name not in TRIGGERS:
            return
        host = self._world.hosts[running.host.name]
        share, kinds = TRIGGERS[reached.name]
        if host.name not in self._programs or self._rng.random() > share:
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
            case "stop":
                host.spawn(self._stop(host, for_s), name="stop")
            case _:
                client = self._programs[host.name].client
                if client is not None:
                    client.lose_replies(self._rng.choice((1, 2, 3, 5)))

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
