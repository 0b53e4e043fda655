"""A plan of faults: which fault strikes when. Drawn from a seed before anything runs, so that it can be read, reduced
and replayed.

    plan = FaultPlan.drawn(seed, servers=["b1", "b2"], clients=["c1"], duration_s=30)
    plan.start(world)
    world.run_until(...)          # every fault has ended by `plan.ends_s`

Servers are killed, lose power, are paused, and have their clocks stepped. Links between all hosts are cut in one or
both directions, slowed down or made lossy, and their connections are reset. Each fault heals by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from ottla.sim.disk import Keep
    from ottla.sim.hosts import SimHost
    from ottla.sim.world import SimWorld


class FaultKind(Enum):
    """The kind of a fault. Those in `OF_HOSTS` affect one host, the others affect links."""

    KILL = "kill"
    POWER_CUT = "power cut"
    PAUSE = "pause"
    CLOCK_STEP = "clock step"
    CUT = "cut"
    ONE_WAY_CUT = "one-way cut"
    PARTITION = "partition"
    SLOW = "slow"
    LOSS = "loss"
    RESET = "reset"


OF_HOSTS = frozenset({FaultKind.KILL, FaultKind.POWER_CUT, FaultKind.PAUSE, FaultKind.CLOCK_STEP})
OF_A_MOMENT = frozenset({FaultKind.CLOCK_STEP, FaultKind.RESET})
KEEPS: tuple[Keep, ...] = ("some", "all", "none")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a host or of the links between two groups of hosts."""

    at_s: float
    duration_s: float
    kind: FaultKind
    some: tuple[str, ...]
    others: tuple[str, ...] = ()
    amount: float = 0.0
    """Seconds, a share, or milliseconds, depending on the kind."""
    keep: str = "some"

    @property
    def ends_s(self) -> float:
        """Planned end in seconds, from the start of the plan."""
        return self.at_s + self.duration_s

    def __str__(self) -> str:
        groups = "+".join(self.some) + (" | " + "+".join(self.others) if self.others else "")
        amount = f" {self.amount:.3f}" if self.amount else ""
        keep = f" keeps {self.keep}" if self.kind is FaultKind.POWER_CUT else ""
        return f"{self.at_s:8.3f} s to {self.ends_s:8.3f} s: {self.kind.value} {groups}{amount}{keep}"


OnStruck = Callable[[PlannedFault], None]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of one run."""

    faults: tuple[PlannedFault, ...]

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
        clients: Sequence[str],
        duration_s: float,
        count: int = 8,
        kinds: Iterable[FaultKind] = tuple(FaultKind),
    ) -> FaultPlan:
        """Draws a plan from a seed. A kind that occurs several times in `kinds` is drawn more often."""
        rng = Random(f"{seed}/faults")
        chosen = [_drawn(rng, rng.choice(list(kinds)), servers, clients, duration_s) for _ in range(count)]
        return cls(tuple(sorted(chosen, key=lambda fault: fault.at_s)))

    def start(self, world: SimWorld, on_struck: OnStruck | None = None) -> None:
        """Starts the plan; its times count from now. `on_struck` is called for each fault that has an effect: a dead
        process is not killed again."""
        for fault in self.faults:
            world.after(fault.at_s, _strike, world, fault, on_struck)


def _drawn(
    rng: Random, kind: FaultKind, servers: Sequence[str], clients: Sequence[str], duration_s: float
) -> PlannedFault:
    at_s = rng.random() * duration_s
    lasts_s = min(rng.choice((0.05, 0.5, 3.0, 10.0)) * (0.5 + rng.random()), max(duration_s - at_s, 0.01))
    if kind in OF_A_MOMENT:
        lasts_s = 0.0
    if kind in OF_HOSTS:
        amount = rng.choice((-1, 1)) * rng.choice((5.0, 500.0, 60_000.0)) if kind is FaultKind.CLOCK_STEP else 0.0
        return PlannedFault(at_s, lasts_s, kind, (rng.choice(servers),), amount=amount, keep=rng.choice(KEEPS))
    everybody = [*servers, *clients]
    if kind is FaultKind.PARTITION and len(everybody) > 2:
        rng.shuffle(everybody)
        at = rng.randrange(1, len(everybody))
        return PlannedFault(at_s, lasts_s, kind, tuple(everybody[:at]), tuple(everybody[at:]))
    one = rng.choice(servers)
    other = rng.choice([name for name in everybody if name != one])
    pair = (one, other) if rng.random() < 0.5 else (other, one)
    amount = {FaultKind.SLOW: rng.choice((0.01, 0.2, 1.0)), FaultKind.LOSS: rng.choice((0.02, 0.1, 0.3))}.get(kind, 0.0)
    return PlannedFault(at_s, lasts_s, kind, pair[:1], pair[1:], amount=amount)


def _strike(world: SimWorld, fault: PlannedFault, on_struck: OnStruck | None) -> None:
    world.note(f"fault: {fault}")
    if on_struck is not None and _has_effect(world, fault):
        on_struck(fault)
    heal = _begin(world, fault)
    if heal is not None:
        world.after(fault.duration_s, heal)


def _has_effect(world: SimWorld, fault: PlannedFault) -> bool:
    if fault.kind is FaultKind.POWER_CUT:
        return world.hosts[fault.some[0]].is_up
    if fault.kind in (FaultKind.KILL, FaultKind.PAUSE):
        host = world.hosts[fault.some[0]]
        return host.is_running and not host.is_paused
    return True


def _begin(world: SimWorld, fault: PlannedFault) -> Callable[[], None] | None:
    """Starts a fault and returns a function that ends it."""
    network = world.network
    match fault.kind:
        case FaultKind.CUT | FaultKind.PARTITION:
            return network.cut(fault.some, fault.others).heal
        case FaultKind.ONE_WAY_CUT:
            return network.cut(fault.some, fault.others, one_way=True).heal
        case FaultKind.SLOW:
            return network.slow_down(fault.some, fault.others, add_s=fault.amount).heal
        case FaultKind.LOSS:
            return network.lose(fault.some, fault.others, share=fault.amount).heal
        case FaultKind.RESET:
            network.reset(fault.some, fault.others)
            return None
        case _:
            return _begin_on_host(world.hosts[fault.some[0]], fault)


def _begin_on_host(host: SimHost, fault: PlannedFault) -> Callable[[], None] | None:
    match fault.kind:
        case FaultKind.PAUSE:
            host.pause()
            return host.resume
        case FaultKind.CLOCK_STEP:
            host.step_wall_clock(fault.amount)
            return None
        case FaultKind.KILL:
            host.kill()
        case _:
            host.cut_power(cast("Keep", fault.keep))
    return lambda: None if host.is_running else host.boot()
