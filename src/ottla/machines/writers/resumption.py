"""Determines which of a writer's records are in the log after its connection broke.

The ids of a writer's records are the sequence numbers of its batches, truncated to 31 bits. Unlike the sequence numbers
of a Kafka producer they may have gaps: a rejected append has an id but no record. The writer reports the id up to which
everything is settled; the log knows the last id it holds. Every id in between is either in the log or was rejected,
because ids are processed in order: every id below the last one was decided before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SEQUENCE_MASK = 0x7FFFFFFF
BACK_MAX = 1 << 30
"""Larger than any number of ids in flight. A sequence number that appears further ahead than this is behind."""
NO_ID = -1


class LoggedIds(NamedTuple):
    """A range of ids that are in the log."""

    first_id: int
    record_count: int
    base_offset: int

    @property
    def end_offset(self) -> int:
        """The offset after the last record of the range."""
        return self.base_offset + self.record_count


class RejectedIds(NamedTuple):
    """A range of ids that are not in the log and never will be."""

    first_id: int
    record_count: int


def sequence_of(record_id: int) -> int:
    """Returns the sequence number that a record id has in the log."""
    return record_id & SEQUENCE_MASK


def id_of(sequence: int, settled_id: int) -> int:
    """Returns the id of a sequence number, given a settled id near it. A result below `settled_id` means that the log
    has lost records that it acknowledged."""
    ahead = (sequence - settled_id) & SEQUENCE_MASK
    return settled_id + ahead if ahead <= BACK_MAX else settled_id + ahead - SEQUENCE_MASK - 1


def account_for(settled_id: int, last_id: int, batches: Iterable[LoggedIds]) -> list[LoggedIds | RejectedIds]:
    """Accounts for every id above `settled_id` up to `last_id`, in order. `batches` are the writer's batches,
    in order."""
    accounts: list[LoggedIds | RejectedIds] = []
    at = settled_id + 1
    for batch in batches:
        first, end = max(batch.first_id, at), min(batch.first_id + batch.record_count, last_id + 1)
        if first >= end:
            continue
        if first > at:
            accounts.append(RejectedIds(at, first - at))
        accounts.append(LoggedIds(first, end - first, batch.base_offset + first - batch.first_id))
        at = end
    if at <= last_id:
        accounts.append(RejectedIds(at, last_id + 1 - at))
    return accounts
