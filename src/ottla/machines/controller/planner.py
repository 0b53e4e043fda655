"""Incremental planning: follows changes of the image without examining every partition each time."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.image_changes import ImageChanges
from ottla.machines.controller.image_differences import partitions_concerned
from ottla.machines.controller.plan import NOBODY, due_changes, writes_for
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import ControllerEntry, PartitionKey, Versioned
from ottla.machines.controller.writes import Limits, Write


class Planner:
    """Returns what `plan` returns, but examines only partitions that changes concerned since nothing was
    due for them."""

    def __init__(self, rules: RuleBook) -> None:
        self._rules = rules
        self._open: set[PartitionKey] | None = None
        """The partitions to examine; None means all of them."""

    def start_over(self) -> None:
        """Examines all partitions again. Call it when this broker becomes the controller or has loaded a new image."""
        self._open = None

    def observe(self, image: ClusterImage, touched: ImageChanges) -> None:
        """Notes what a batch changed. Call it after each batch that was applied to the image."""
        if self._open is not None:
            self._open |= partitions_concerned(image, touched)

    def plan(
        self,
        image: ClusterImage,
        me: Versioned[ControllerEntry],
        limits: Limits | None = None,
        preferred: Collection[PartitionKey] = NOBODY,
    ) -> list[Write]:
        """Returns the writes that are due. A change stays open until it is observed, so a failed write is planned
        again."""
        limits = limits or Limits()
        among = None if self._open is None else self._open.union(preferred)
        due = list(islice(due_changes(image, self._rules, among, preferred), limits.changes_max))
        if limits.changes_max is None or len(due) < limits.changes_max:
            # Nothing is due for any other partition.
            self._open = {each.key for each in due}
        return writes_for(image, me, due, limits)
