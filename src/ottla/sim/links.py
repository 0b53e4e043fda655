"""Links between simulated hosts: their delays and their faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from ottla.sim.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Delay:
    """A distribution of delays: usually between `min_s` and `min_s + spread_s`, lower values being more likely; a share
    of `tail_share` takes up to `tail_s`."""

    min_s: float = 0.0001
    spread_s: float = 0.001
    tail_share: float = 0.01
    tail_s: float = 0.02

    def draw(self, rng: Random) -> float:
        """Returns a random delay in seconds."""
        point = rng.random()
        if point < self.tail_share:
            return self.min_s + rng.random() * self.tail_s
        return self.min_s + point * point * self.spread_s


LOOPBACK = Delay(min_s=0.00001, spread_s=0.00005, tail_share=0.0)


@dataclass(slots=True)
class NetworkSettings:
    """How simulated streams behave."""

    window_bytes: int = 128 * 1024
    """Maximum number of bytes of a stream that are in flight or unread."""
    backlog: int = 128
    split_share: float = 0.15
    """How often data written at once arrives in two or more pieces."""
    short_read_share: float = 0.15
    """How often a read returns less than is available."""
    give_up_s: float = 120.0
    """A connection times out if its bytes do not arrive for this long."""
    connect_timeout_s: float = 60.0
    retry_s_max: float = 0.4
    """Maximum time after a fault has healed until the kernel retransmits."""
    delay: Delay = field(default_factory=Delay)


class Link:
    """The link from one host to another, in one direction."""

    def __init__(self, scheduler: Scheduler, delay: Delay) -> None:
        self._scheduler = scheduler
        self.delay = delay
        self.bandwidth_bytes_s: float | None = None
        self.cuts = 0
        self.losses: list[float] = []
        self.slowdowns: list[float] = []
        self._busy_until_s = 0.0

    @property
    def is_cut(self) -> bool:
        """Whether at least one fault cuts this link."""
        return self.cuts > 0

    def arrival_s(self, byte_count: int) -> float:
        """Returns the time at which something sent now arrives."""
        scheduler = self._scheduler
        at_s = scheduler.now_s
        if self.bandwidth_bytes_s is not None:
            at_s = self._busy_until_s = max(at_s, self._busy_until_s) + byte_count / self.bandwidth_bytes_s
        at_s += self.delay.draw(scheduler.rng) + (sum(self.slowdowns) if self.slowdowns else 0)
        for share in self.losses:
            timeout_s = 0.2
            while scheduler._random() < share and timeout_s < 10:
                at_s += timeout_s
                timeout_s *= 2
        return at_s


class NetworkFault:
    """A fault of some links, until it is healed."""

    def __init__(
        self, links: list[Link], heal: Callable[[Link], None], on_healed: Callable[[NetworkFault], None]
    ) -> None:
        self._links = links
        self._heal = heal
        self._on_healed = on_healed

    def heal(self) -> None:
        """Ends the fault; does nothing if called again."""
        links, self._links = self._links, []
        for link in links:
            self._heal(link)
        self._on_healed(self)
