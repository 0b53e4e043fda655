"""What has to be done elsewhere. Like the answers of a step, effects wait until its records are committed.

Each of them comes back with a call of the coordinator: `markers_written`, `producer_id_allocated` or
`producer_id_refused`. If the coordinator is dropped meanwhile, nobody has to hear of it: the next one asks again.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.machines.transactions.records import TopicPartition


class WriteMarkers(NamedTuple):
    """WriteTxnMarkers to the leaders of these partitions. All are reported, at once or one by one."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: frozenset[TopicPartition]


class AllocateProducerId(NamedTuple):
    """One that was never given before, to anybody in the cluster."""

    transactional_id: str


Effect = WriteMarkers | AllocateProducerId
