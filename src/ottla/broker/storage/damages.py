"""The known damage of one log."""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.storage.contract import Damage


class Damages(list[Damage]):
    """The damaged parts of a log, in the order in which they were found."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__()
        self._report = report

    def at(self, offset: int) -> Damage | None:
        """Returns the damage that covers the offset, if any."""
        return next((each for each in self if each.first_offset <= offset < each.next_offset), None)

    def record(self, damage: Damage) -> None:
        """Adds a damage and reports it to the operator, unless it is known. Also called on disk threads."""
        if damage not in self:
            self.append(damage)
            self._report(str(damage))
