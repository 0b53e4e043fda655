"""Chooses the segments of a log to compact and decides whether it is worth it, by Kafka's rules.

Only whole segments that no longer change are eligible: those below the last stable offset (and thus the high
watermark), below the durable recovery point and the durable producer state (safety: after-failover), and older than
`min.compaction.lag.ms`. All segments from the log's start to the last eligible one are rewritten, but keys are
collected only from the dirty ones, which were added since the last compaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.broker.storage.segment import OFFSET_SPAN_MAX, Segment
from ottla.protocol.model.config_keys import LONG_MAX

if TYPE_CHECKING:
    from ottla.broker.storage.file_log import FileLog

GROUP_SEGMENTS_MAX = 64
"""Maximum number of segments in a group: all of them are open while they are replaced."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a compaction of one log will do."""

    segments: list[Segment]
    """All segments that will be rewritten, in order."""
    dirty_from: int
    """No key occurs twice below this offset."""
    dirty_bytes: int
    total_bytes: int
    is_overdue: bool
    """True if a record has not been compacted for longer than `max.compaction.lag.ms`."""

    @property
    def dirty_ratio(self) -> float:
        """The share of bytes that were not compacted yet, from 0 to 1."""
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def dirty(self) -> list[Segment]:
        """The segments with records above the mark, whose keys have to be read."""
        return [segment for segment in self.segments if segment.end_offset > self.dirty_from]


def plan_for(log: FileLog, last_stable_offset: int, now_ms: int) -> Plan | None:
    """Returns a plan, or None if there is nothing to compact now. It includes nothing at or above the last stable
    offset."""
    segments = _cleanable(log, last_stable_offset, now_ms)
    dirty_from = max(log.durable.compacted_end, segments[0].base_offset) if segments else 0
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
    point = log.durable.recovery_point
    if point is None or not log.config.is_compacted or log.has_ended or log.truncating:
        return []
    upto = min(last_stable_offset, point.offset, log.durable.state_offset)
    found: list[Segment] = []
    for segment in log.segments[:-1]:
        if segment.end_offset > upto or segment.base_offset >= point.segment_base:
            break
        is_settled = segment.synced_end == segment.appended_end and segment.entry_durable and not segment.sealing
        is_young = now_ms - segment.youngest_ms < log.config.min_compaction_lag_ms
        if not is_settled or is_young:
            break
        if segment.end_offset > log.start_offset:  # otherwise retention is about to remove it
            found.append(segment)
    return found


def groups_of(segments: list[Segment], segment_bytes: int) -> list[list[Segment]]:
    """Groups segments that become one: as many as fit into one segment before anything is removed."""
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
    """Reports whether the active segment, which is never compacted, must be rolled because its records have waited too
    long."""
    lag_ms = log.config.max_compaction_lag_ms
    active = log.active
    if not log.config.is_compacted or lag_ms == LONG_MAX or active.appended_end == 0:
        return False
    return now_ms - active.oldest_ms > lag_ms
