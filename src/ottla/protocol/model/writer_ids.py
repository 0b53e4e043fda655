"""Identifies the writer of a log on the append stream by the producer id of its record batches.

The single writer of a log is identified by its epoch. Its batches carry a producer id above all that brokers assign to
Kafka producers: this bit and the epoch. Everything that preserves producer state (snapshots, truncation, failover)
therefore preserves the epoch, and the latest epoch is the highest of these ids.

An epoch combines the leader epoch in which the fence was written with a count within that leader epoch. A leader knows
all fences of its own leader epoch, so no epoch is assigned twice, even by a leader that has forgotten earlier fences.
"""

from __future__ import annotations

WRITER_IDS_FROM = 1 << 62
COUNT_BITS = 31
COUNT_MAX = (1 << COUNT_BITS) - 1
NO_EPOCH = 0


def producer_id_of(epoch: int) -> int:
    """Returns the producer id of a writer's epoch."""
    return WRITER_IDS_FROM | epoch


def epoch_of(producer_id: int) -> int:
    """Returns the epoch of a writer; NO_EPOCH for any other producer."""
    return producer_id - WRITER_IDS_FROM if producer_id >= WRITER_IDS_FROM else NO_EPOCH


def next_epoch(leader_epoch: int, current: int) -> int | None:
    """Returns the epoch after `current`; None if this leader epoch has no more."""
    first = (leader_epoch + 1) << COUNT_BITS
    if current < first:
        return first
    return current + 1 if current - first < COUNT_MAX else None
