"""Injects the faults: first one kind after the other, each until the cluster is healthy again, then many at once.

A seed determines all choices. The brokers' reactions depend on timing, so a run repeats its faults but not its outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random

from tests.processes.siege.cluster import Cluster
from tests.processes.siege.faults import FAULTS, Fault, destroys, possible
from tests.processes.siege.history import Recorder

HEAL_TIMEOUT_S = 300.0
CALM_S = 1.5
SLOW_DISK_CALM_S = 5.0
AT_ONCE_MAX = 3
STORM_S = 20.0
NEVER_AT_ONCE = {"kill of all", "power cut of all"}

Say = Callable[[str], None]


class Nemesis:
    def __init__(
        self, cluster: Cluster, recorder: Recorder, chance: Random, say: Say, only: Sequence[str] | None = None
    ) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._chance = chance
        self._say = say
        self.kinds = [kind for kind in possible(cluster) if only is None or kind in only]

    def calm(self, seconds: float, name: str = "calm") -> None:
        self._phase(name)
        self._sleep(seconds)

    def in_turns(self, deadline_s: float) -> None:
        """Injects each kind once, in a random order; starts none after the deadline."""
        for kind in self._chance.sample(self.kinds, len(self.kinds)):
            if time.monotonic() > deadline_s:
                return
            fault = FAULTS[kind](self._cluster, self._chance, self._cluster.nodes)
            is_slow = kind == "slow disk"
            self.calm(SLOW_DISK_CALM_S if is_slow else CALM_S, f"before {kind}" if is_slow else "calm")
            self._phase(kind)
            self._begin(fault)
            self._sleep(fault.hold_s)
            self._end(fault)
            self._phase(f"after {kind}" if is_slow else "healing")
            self.wait_in_sync(f"after {kind}")
            if is_slow:
                self._sleep(SLOW_DISK_CALM_S)

    def at_once(self, seconds: float) -> None:
        """Injects several faults at a time on different brokers. Sometimes all of them end and the cluster recovers."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._phase("all at once")
            self._storm(min(left_s, STORM_S))
            self._phase("healing")
            self.wait_in_sync("after many faults at once")

    def _storm(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        active: list[tuple[float, Fault]] = []
        has_destroyed = False
        while active or time.monotonic() < until_s:
            for due in [one for one in active if one[0] <= time.monotonic()]:
                active.remove(due)
                self._end(due[1])
            if time.monotonic() < until_s and len(active) < AT_ONCE_MAX:
                fault = self._another([one for _, one in active], may_destroy=not has_destroyed)
                if fault is not None:
                    has_destroyed = has_destroyed or destroys(fault, self._cluster)
                    self._begin(fault)
                    active.append((time.monotonic() + fault.hold_s, fault))
            self._sleep(self._chance.uniform(0.1, 1.0))

    def _another(self, active: list[Fault], *, may_destroy: bool) -> Fault | None:
        """Returns None if the drawn fault is not possible now. At most one destroys data until all is in sync again."""
        taken = frozenset().union(*(fault.takes for fault in active))
        free = [node for node in self._cluster.nodes if node.host not in taken]
        kind = self._chance.choice([kind for kind in self.kinds if kind not in NEVER_AT_ONCE])
        if len(free) < 2:
            return None
        fault = FAULTS[kind](self._cluster, self._chance, free)
        if fault.takes & taken or (destroys(fault, self._cluster) and not may_destroy):
            return None
        return fault

    def wait_in_sync(self, when: str) -> None:
        deadline_s = time.monotonic() + HEAL_TIMEOUT_S
        while not self._cluster.is_in_sync():
            self._look_after_brokers()
            if time.monotonic() > deadline_s:
                self.broken(f"not all replicas are in sync {HEAL_TIMEOUT_S:.0f} s {when}: {self._cluster.states()}")
                return
            time.sleep(0.2)

    def broken(self, sentence: str) -> None:
        self._say(sentence)
        self._recorder.write("broken", "-", sentence.replace("\t", " ").replace("\n", " "))

    def _begin(self, fault: Fault) -> None:
        self._say(f"{fault.kind}: {fault.detail} for {fault.hold_s:.1f} s")
        self._recorder.write("fault", "-", fault.kind, "begin", fault.detail)
        fault.begin()

    def _end(self, fault: Fault) -> None:
        fault.end()
        self._recorder.write("fault", "-", fault.kind, "end", fault.detail)

    def _phase(self, name: str) -> None:
        self._recorder.write("phase", "-", name)

    def _sleep(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            self._look_after_brokers()
            time.sleep(min(left_s, 0.2))

    def _look_after_brokers(self) -> None:
        """Reports a broker that ended by itself as a finding, and restarts it."""
        for node in self._cluster.nodes:
            code = node.ended_by_itself()
            if code is not None:
                self.broken(f"{node.host} ended by itself with {code}: {node.log()[-600:]}")
                node.start()
