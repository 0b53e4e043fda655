"""Actions that the broker performs for the coordinator. Like the replies of a step, they wait until its records are
committed.

The outcome of each effect is reported by a call of the coordinator: `markers_written`, `producer_id_allocated` or
`producer_id_refused`. If the coordinator was dropped in the meantime, the outcome need not be reported: the next
coordinator asks again.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.machines.transactions.records import TopicPartition


class WriteMarkers(NamedTuple):
    """Sends WriteTxnMarkers to the leaders of these partitions. Every partition is reported, together or one
    at a time."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: frozenset[TopicPartition]


class AllocateProducerId(NamedTuple):
    """Allocates a producer id that was never given to any producer of the cluster."""

    transactional_id: str


Effect = WriteMarkers | AllocateProducerId
