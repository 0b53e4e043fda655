"""Who writes a log by the append stream, as a record batch's producer id says it.

The single writer of a log is known by its epoch. Its batches carry a producer id above all that brokers hand out to
Kafka producers: this bit and the epoch. So whatever keeps producers (snapshots, truncation, failover) keeps the epoch,
and the latest epoch is the greatest of these ids.

An epoch is the leader epoch in which the fence was written, and a count within that one. A leader knows all fences of
its own leader epoch, so no epoch is given out twice, even by a leader that has forgotten the fences before it.
"""

from __future__ import annotations

WRITER_IDS_FROM = 1 << 62
COUNT_BITS = 31
COUNT_MAX = (1 << COUNT_BITS) - 1
NO_EPOCH = 0


def producer_id_of(epoch: int) -> int:
    return WRITER_IDS_FROM | epoch


def epoch_of(producer_id: int) -> int:
    """NO_EPOCH for any other producer."""
    return producer_id - WRITER_IDS_FROM if producer_id >= WRITER_IDS_FROM else NO_EPOCH


def next_epoch(leader_epoch: int, current: int) -> int | None:
    """None: this leader epoch has no more."""
    first = (leader_epoch + 1) << COUNT_BITS
    if current < first:
        return first
    return current + 1 if current - first < COUNT_MAX else None
