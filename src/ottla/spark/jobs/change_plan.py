"""Plans where to read the changes of a table: from the archive where possible, and otherwise from the live log.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ottla.archive.failures import LostOffsetsError
from ottla.archive.ranges import OffsetRange, joined, without
from ottla.client.consumer.types import TopicPartition

RangeLists = dict[TopicPartition, list[OffsetRange]]


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The ranges to read, by source."""

    archive: RangeLists = field(default_factory=dict)
    live: RangeLists = field(default_factory=dict)
    missing: RangeLists = field(default_factory=dict)
    """Ranges that neither has."""

    def check(self) -> None:
        """Raises LostOffsetsError if anything is missing."""
        if self.missing:
            named = ", ".join(f"{at} offsets {each}" for at, many in self.missing.items() for each in many)
            raise LostOffsetsError(
                f"missing in both the archive and the log: {named}. Choose the archive that has them "
                "(--archive); --incomplete uses the remaining changes"
            )


def plan_changes(
    wanted: Mapping[TopicPartition, OffsetRange],
    archived: Mapping[TopicPartition, Sequence[OffsetRange]],
    live: Mapping[TopicPartition, OffsetRange],
) -> ChangePlan:
    """Assigns the wanted ranges to the archive and the live log."""
    plan = ChangePlan()
    for at, whole in sorted(wanted.items()):
        from_archive = [common for each in joined(archived.get(at, [])) if (common := whole.intersection(each))]
        rest = without(whole, from_archive)
        extent = live.get(at)
        from_live = [common for each in rest if extent is not None and (common := each.intersection(extent))]
        missing = [part for each in rest for part in without(each, from_live)]
        for place, found in ((plan.archive, from_archive), (plan.live, from_live), (plan.missing, missing)):
            if found:
                place[at] = found
    return plan
