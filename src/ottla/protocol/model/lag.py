"""The lag of a consumer group in a partition: one definition for clients, the command line and metrics. Pure.

Lag in records is the number of offsets from the committed one to the end that a reader can reach, the last stable
offset. Records that were deleted before the group read them count as missed, not as lag. Offsets that compaction or
transaction markers left without a record are counted, as everywhere in Kafka.

Lag in time is the age of the first unread record. It comes from the header of one batch. If the committed offset is in
the middle of a batch, it is the time of the batch's first record: never less than the true lag, and more by at most the
time that the records of one batch span. A group that has read everything has no lag, however old the last record is.
"""

from __future__ import annotations

from typing import NamedTuple

NO_TIMESTAMP = -1


class Lag(NamedTuple):
    """The lag of a group in one partition, in records."""

    records: int
    missed: int
    """Deleted offsets that the group never committed."""
    first_unread: int | None
    """The offset of the oldest unread record, for its time; None if everything is read."""


def lag_of(committed: int, log_start: int, last_stable: int) -> Lag:
    """Returns the lag. A group beyond the end, because the log lost its end or transactions are open, has no lag."""
    first_unread = max(committed, log_start)
    records = max(0, last_stable - first_unread)
    return Lag(records, max(0, log_start - committed), first_unread if records else None)


def batch_timestamp_ms(base_timestamp_ms: int, max_timestamp_ms: int, is_log_append_time: bool) -> int | None:
    """Returns the time of a batch's first record, from its header; None if it has none."""
    timestamp_ms = max_timestamp_ms if is_log_append_time else base_timestamp_ms
    return None if timestamp_ms <= NO_TIMESTAMP else timestamp_ms


def lag_seconds(records: int, first_unread_ms: int | None, now_ms: int) -> float | None:
    """Returns the lag in time: 0 if everything is read, None if the first unread record has no timestamp. Timestamps in
    the future give no lag."""
    if records == 0:
        return 0.0
    return None if first_unread_ms is None else max(0, now_ms - first_unread_ms) / 1000
