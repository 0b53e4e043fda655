"""Which segments of a log can be compacted, and whether it is worth it: Kafka's rules.

Only whole segments that nothing changes any more: below the last stable offset (and with it the watermark), below the
durable recovery point and the durable state of the producers (SAFETY 20), older than `min.compaction.lag.ms`. From the
log's start up to the last of them all are read and written again, but keys are taken from the dirty ones alone: those
that came since the last time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.log.segment import OFFSET_SPAN_MAX, Segment
from ottla.model.config_keys import LONG_MAX

if TYPE_CHECKING:
    from ottla.log.file_log import FileLog

GROUP_SEGMENTS_MAX = 64
"""All of them are open while they are replaced."""


@dataclass(frozen=True, slots=True)
class Plan:
    segments: list[Segment]
    """All that will be read and written again, in order."""
    dirty_from: int
    """No key comes twice below this offset."""
    dirty_bytes: int
    total_bytes: int
    is_overdue: bool
    """A record has been left out for longer than `max.compaction.lag.ms`."""

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def dirty(self) -> list[Segment]:
        return [segment for segment in self.segments if segment.end_offset > self.dirty_from]


def plan_for(log: FileLog, last_stable_offset: int, now_ms: int) -> Plan | None:
    """None if there is nothing to compact now. Nothing is at or above the last stable offset."""
    segments = _cleanable(log, last_stable_offset, now_ms)
    dirty_from = max(log.compacted_end, segments[0].base_offset) if segments else 0
    dirty = [segment for segment in segments if segment.end_offset > dirty_from]
    if not dirty:
        return None
    plan = Plan(
        segments,
        dirty_from,
        sum(segment.appended_end for segment in dirty),
        sum(segment.appended_end for segment in segments),
        any(now_ms - segment.oldest_ms > log.config.max_compaction_lag_ms for segment in dirty),
    )
    is_worth_it = plan.is_overdue or plan.dirty_ratio >= log.config.min_cleanable_dirty_ratio
    return plan if is_worth_it else None


def _cleanable(log: FileLog, last_stable_offset: int, now_ms: int) -> list[Segment]:
    point = log.recovery_point
    if point is None or not log.config.is_compacted or log.has_ended or log.truncating:
        return []
    upto = min(last_stable_offset, point.offset, log.state_offset)
    found: list[Segment] = []
    for segment in log.segments[:-1]:
        if segment.end_offset > upto or segment.base_offset >= point.segment_base:
            break
        is_settled = segment.synced_end == segment.appended_end and segment.entry_durable and not segment.sealing
        is_young = now_ms - segment.youngest_ms < log.config.min_compaction_lag_ms
        if not is_settled or is_young:
            break
        if segment.end_offset > log.start_offset:  # else retention is about to remove it
            found.append(segment)
    return found


def groups_of(segments: list[Segment], segment_bytes: int) -> list[list[Segment]]:
    """Segments that become one: as many as fit into one before anything is removed."""
    groups: list[list[Segment]] = []
    size = 0
    for segment in segments:
        group = groups[-1] if groups else []
        fits = (
            len(group) in range(1, GROUP_SEGMENTS_MAX)
            and size + segment.appended_end <= segment_bytes
            and segment.end_offset - group[0].base_offset <= OFFSET_SPAN_MAX
        )
        if fits:
            group.append(segment)
            size += segment.appended_end
        else:
            groups.append([segment])
            size = segment.appended_end
    return groups


def must_roll_for_compaction(log: FileLog, now_ms: int) -> bool:
    """The active segment is never compacted: one that holds records for too long has to end."""
    lag_ms = log.config.max_compaction_lag_ms
    active = log.active
    if not log.config.is_compacted or lag_ms == LONG_MAX or active.appended_end == 0:
        return False
    return now_ms - active.oldest_ms > lag_ms
