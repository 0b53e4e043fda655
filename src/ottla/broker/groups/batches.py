"""Encodes a step's records as one batch, so that a failover keeps all of them or none (ADR 10)."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.machines.groups.encoding import encode
from ottla.machines.groups.shard import Appended
from ottla.protocol.records.bridge import RowEncoder, Traits, seal
from ottla.protocol.records.envelope import INT32_MAX

PLAIN = Traits()


def batch_of(records: Sequence[Appended], timestamp_ms: int) -> bytearray:
    """Returns the records as one uncompressed batch: these batches are small, and a new leader reads all of them.

    A transaction's offsets are a step of their own, so they form a batch of its producer. As in Kafka, the batch has no
    sequence numbers: repeating a commit has no effect.
    """
    encoder = RowEncoder(INT32_MAX)
    for appended in records:
        key, value = encode(appended.record)
        encoder.append(key, value, (), timestamp_ms)
    assert encoder.record_count == len(records), "all records of a step must fit into one batch"
    return seal(encoder.take(), _traits_of(records))


def _traits_of(records: Sequence[Appended]) -> Traits:
    producers = {(appended.producer_id, appended.producer_epoch) for appended in records}
    assert len(producers) == 1, "all records of a step must have the same producer"
    producer_id, producer_epoch = producers.pop()
    if producer_id is None:
        return PLAIN
    return Traits(producer_id=producer_id, producer_epoch=producer_epoch, transactional=True)
