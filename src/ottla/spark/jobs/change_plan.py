"""From where the changes of a table are read: the archive where it has them, the live log for the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ottla.client.fetched import TopicPartition
from ottla.spark.jobs.failures import LostOffsetsError
from ottla.spark.jobs.ranges import OffsetRange, joined, without

RangeLists = dict[TopicPartition, list[OffsetRange]]


@dataclass(frozen=True, slots=True)
class ChangePlan:
    archive: RangeLists = field(default_factory=dict)
    live: RangeLists = field(default_factory=dict)
    missing: RangeLists = field(default_factory=dict)
    """In neither."""

    def check(self) -> None:
        """LostOffsetsError if something is missing."""
        if self.missing:
            named = ", ".join(f"{at} offsets {each}" for at, many in self.missing.items() for each in many)
            raise LostOffsetsError(
                f"neither in the archive nor in the log any more: {named}. Name the archive that has them (--archive); "
                f"--incomplete takes what is left"
            )


def plan_changes(
    wanted: Mapping[TopicPartition, OffsetRange],
    archived: Mapping[TopicPartition, Sequence[OffsetRange]],
    live: Mapping[TopicPartition, OffsetRange],
) -> ChangePlan:
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
