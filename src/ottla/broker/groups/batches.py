"""A step's records as one batch: all of them survive a failover, or none (ADR 10)."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.machines.groups.encoding import encode
from ottla.machines.groups.shard import Appended
from ottla.records.bridge import RowEncoder, Traits, seal
from ottla.records.envelope import INT32_MAX

PLAIN = Traits()


def batch_of(records: Sequence[Appended], timestamp_ms: int) -> bytearray:
    """Uncompressed: these batches are small, and a leader that takes over reads all of them.

    Not here: records of a transaction, which need a batch and a producer's epoch of their own.
    """
    encoder = RowEncoder(INT32_MAX)
    for appended in records:
        assert appended.producer_id is None, "offsets of transactions are not written yet"
        key, value = encode(appended.record)
        encoder.append(key, value, (), timestamp_ms)
    assert encoder.record_count == len(records), "a step is one batch, however large"
    return seal(encoder.take(), PLAIN)
