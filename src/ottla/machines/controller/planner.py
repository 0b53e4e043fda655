"""Plans as the image changes, without looking at every partition each time."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.plan import NOBODY, due_changes, writes_for
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import ControllerEntry, PartitionKey, Versioned
from ottla.machines.controller.touched import Touched, partitions_concerned
from ottla.machines.controller.writes import Limits, Write


class Planner:
    """Gives what `plan` gives, looking only at partitions that changes concerned since nothing was due for them."""

    def __init__(self, rules: RuleBook) -> None:
        self._rules = rules
        self._open: set[PartitionKey] | None = None
        """None are all of them."""

    def start_over(self) -> None:
        """Whenever this broker becomes the controller, or has loaded a new image."""
        self._open = None

    def observe(self, image: ClusterImage, touched: Touched) -> None:
        """After each batch that was applied to the image."""
        if self._open is not None:
            self._open |= partitions_concerned(image, touched)

    def plan(
        self,
        image: ClusterImage,
        me: Versioned[ControllerEntry],
        limits: Limits | None = None,
        preferred: Collection[PartitionKey] = NOBODY,
    ) -> list[Write]:
        """What is due stays open until its change is seen, so a write that failed is planned again."""
        limits = limits or Limits()
        among = None if self._open is None else self._open.union(preferred)
        due = list(islice(due_changes(image, self._rules, among, preferred), limits.changes_max))
        if limits.changes_max is None or len(due) < limits.changes_max:
            # Nothing is due for those that are not among these.
            self._open = {each.key for each in due}
        return writes_for(image, me, due, limits)
