"""Tracks who still has the data of an ISR member: knows what each durability class may lose.

A member is an incarnation of a broker. Its data is lost with its process (`memory`), with the power of its machine
(`cache`) or with its disk. No two disks are destroyed at the same time, so `disk` may not lose anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ottla.machines.controller.state import Member, PartitionState, Registration
from ottla.protocol.model.durability import Durability
from ottla.sim.hosts import SimHost


@dataclass(frozen=True, slots=True)
class Process:
    host: SimHost
    incarnation: int
    power_cuts: int
    wiped: int
    damaged: int


class Survivors:
    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}
        self._members: dict[Member, Process] = {}
        self.wiped: Counter[str] = Counter()
        """How often each host lost its disk."""
        self.damaged: Counter[str] = Counter()
        """How often bits flipped on each host, possibly in live data."""
        self._clean: dict[str, int] = {}
        """Power cuts of each host when it stopped gracefully, until it boots again: those since cost nothing."""
        self._harmless: Counter[str] = Counter()
        """How often each host lost its power between a graceful stop and the next start."""

    def on_boot(self, host: SimHost) -> None:
        if host.name in self._clean:
            self._harmless[host.name] += host.power_cuts - self._clean.pop(host.name)
        name = f"{host.name}/{host.incarnation}"
        self._processes[name] = Process(
            host, host.incarnation, self._power_cuts(host), self.wiped[host.name], self.damaged[host.name]
        )

    def on_clean_stop(self, host: SimHost) -> None:
        """A broker has synced everything and ends."""
        self._clean[host.name] = host.power_cuts

    def _power_cuts(self, host: SimHost) -> int:
        """Returns how often the host lost its power with unsynced pages."""
        return self._clean.get(host.name, host.power_cuts) - self._harmless[host.name]

    def on_registered(self, registration: Registration, process: str) -> None:
        self._members[registration.member] = self._processes[process]

    def process_of(self, member: Member) -> Process | None:
        return self._members.get(member)

    def is_running(self, member: Member) -> bool:
        process = self._members.get(member)
        return process is not None and process.host.is_running and process.host.incarnation == process.incarnation

    def may_have_data(self, member: Member, durability: Durability) -> bool:
        """Returns whether this member's data may still exist."""
        process = self._members[member]
        if durability is Durability.DISK:
            return process.wiped == self.wiped[process.host.name]
        if durability is Durability.MEMORY:
            return self.is_running(member)
        host = process.host
        return process.power_cuts == self._power_cuts(host) and process.wiped == self.wiped[host.name]

    def has_data(self, member: Member, durability: Durability) -> bool:
        """Returns whether this member's data certainly exists."""
        process = self._members[member]
        is_undamaged = durability is Durability.MEMORY or process.damaged == self.damaged[process.host.name]
        return is_undamaged and self.may_have_data(member, durability)

    def certain(self, state: PartitionState, durability: Durability) -> list[Member]:
        """Returns the members and eligible replicas that certainly have everything."""
        return [member for member in (*state.isr, *state.eligible) if self.has_data(member, durability)]

    def possible(self, state: PartitionState, durability: Durability) -> list[Member]:
        return [member for member in (*state.isr, *state.eligible) if self.may_have_data(member, durability)]
