"""A power cut at a chosen operation of a simulated disk."""

from __future__ import annotations

from ottla.sim.disk import SimDisk


class PowerCutError(BaseException):
    """Not an Exception, so that no error handling of the broker runs after the power cut."""


class PowerCut:
    """Cuts the power right before the `nth` operation from now on. Counts all operations."""

    def __init__(self, disk: SimDisk, nth: int | None = None) -> None:
        self.operations = 0
        self._nth = nth
        self._demand_power = disk.state.demand_power
        disk.state.demand_power = self._count  # type: ignore[method-assign]  # every operation calls it first

    def _count(self) -> None:
        self._demand_power()
        self.operations += 1
        if self.operations == self._nth:
            raise PowerCutError

    def call_off(self) -> None:
        self._nth = None
