"""Plans what the next batch of an archive reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.archive.failures import LostOffsetsError, PipelineError
from ottla.archive.manifest import Manifest
from ottla.archive.ranges import OffsetRange
from ottla.client.consumer.types import TopicPartition


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The ranges of the next batch."""

    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    lost: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    lag: int = 0
    """The number of offsets left for later batches."""


def plan_batch(
    manifest: Manifest,
    extents: Mapping[TopicPartition, OffsetRange],
    *,
    offsets_max: int,
    accept_loss: bool = False,
) -> BatchPlan:
    """Plans a batch that continues the manifest. Each partition gets a share of `offsets_max` in proportion to its
    backlog.

    A partition that is not in the manifest starts at its first available offset. Raises LostOffsetsError if retention
    was faster than the archive, unless `accept_loss` is set; then the manifest records what is lost.
    """
    waiting: dict[TopicPartition, OffsetRange] = {}
    lost: dict[TopicPartition, OffsetRange] = {}
    for at, extent in sorted(extents.items()):
        archived = manifest.end_of(at)
        start = extent.start if archived is None else archived
        if start > extent.end:
            raise PipelineError(
                f"{at} ends at offset {extent.end}, but the archive already has it up to {start}: the topic "
                "was deleted and created again, or this is another cluster. Archive it to another directory"
            )
        if start < extent.start:
            lost[at] = OffsetRange(start, extent.start)
            start = extent.start
        waiting[at] = OffsetRange(start, extent.end)
    if lost and not accept_loss:
        raise LostOffsetsError(
            "deleted on the broker before they were archived: "
            + ", ".join(f"{at} offsets {each}" for at, each in lost.items())
            + ". --accept-loss continues after them; the manifest and 'archive verify' will report them as missing"
        )
    ranges = shares(waiting, offsets_max)
    lag = sum(len(each) for each in waiting.values()) - sum(len(each) for each in ranges.values())
    return BatchPlan(ranges, lost, lag)


def shares(waiting: Mapping[TopicPartition, OffsetRange], offsets_max: int) -> dict[TopicPartition, OffsetRange]:
    """Takes the beginning of each range, in proportion, and at least one offset of each, so that none starves."""
    total = sum(len(each) for each in waiting.values())
    taken = {}
    for at, each in waiting.items():
        share = len(each) if total <= offsets_max else max(1, len(each) * offsets_max // total)
        if len(each):
            taken[at] = OffsetRange(each.start, each.start + min(share, len(each)))
    return taken
