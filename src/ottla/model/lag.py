"""How far a consumer group is behind in a partition: one definition for clients, the command line and metrics. Pure.

By records: the offsets from the committed one to the end that a reader can reach, the last stable offset. Records that
were deleted before the group read them are nobody's work any more: they count as missed, not as lag. Offsets that
compaction or transaction markers left without a record are counted, as everywhere in Kafka.

In time: how old the first unread record is. It is found by the header of one batch, so it is the time of the batch's
first record if the group stands in the middle of a batch: never less than the truth, and more by at most the time that
the records of one batch span. A group that has read everything is not behind at all, however old the last record is.
"""

from __future__ import annotations

from typing import NamedTuple

NO_TIMESTAMP = -1


class Lag(NamedTuple):
    records: int
    missed: int
    """Offsets that are deleted and that the group never committed."""
    first_unread: int | None
    """Where to look for the time of the oldest unread record; None if everything is read."""


def lag_of(committed: int, log_start: int, last_stable: int) -> Lag:
    """A group that is ahead of the end, because the log lost its end or transactions are open, has no lag."""
    first_unread = max(committed, log_start)
    records = max(0, last_stable - first_unread)
    return Lag(records, max(0, log_start - committed), first_unread if records else None)


def batch_timestamp_ms(base_timestamp_ms: int, max_timestamp_ms: int, is_log_append_time: bool) -> int | None:
    """The time of a batch's first record, from its header. None if it has none."""
    timestamp_ms = max_timestamp_ms if is_log_append_time else base_timestamp_ms
    return None if timestamp_ms <= NO_TIMESTAMP else timestamp_ms


def lag_seconds(records: int, first_unread_ms: int | None, now_ms: int) -> float | None:
    """0 if everything is read; None if the first unread record has no time. Clocks that go ahead give no lag."""
    if records == 0:
        return 0.0
    return None if first_unread_ms is None else max(0, now_ms - first_unread_ms) / 1000
