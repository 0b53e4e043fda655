"""Batches that a follower received from its leader and can append as one unit.

As with a run of produce requests (`produce_run`), most of a log's work for a batch does not depend on its bytes. Here
the batches already have their offsets and epochs. They must be contiguous, intact and of one epoch, and must change no
state except producer sequences. The first batch that differs ends the run and takes the general path.
"""

from __future__ import annotations

from crc32c import crc32c

from ottla.protocol.records.batch import (
    CONTROL_BIT,
    CRC_COVERS_FROM,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
)

SIZE_BYTES_MAX = 1 << 20
"""Maximum size of a run. A larger one would only be less likely to fit into the segment."""
_UNUSUAL_BITS = CONTROL_BIT | TRANSACTIONAL_BIT


class ReplicaRun:
    """Implements `produce_run.BatchRun`."""

    __slots__ = ("bases", "batches", "ends", "leader_epoch", "max_timestamps", "numbered", "record_count", "size_bytes")

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.batches: list[memoryview] = []
        self.bases: list[int] = []
        self.ends: list[int] = []
        self.max_timestamps: list[int] = []
        self.numbered: list[BatchHeader] = []
        """Headers of the batches from idempotent producers."""
        self.record_count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.batches)


def find_followed_run(
    records: memoryview, at: int, next_offset: int, epoch_min: int, epoch_max: int
) -> ReplicaRun | None:
    """Finds the run that starts at `at`; None if the first batch has to take the general path. Verifies each batch's
    CRC."""
    end = len(records)
    run: ReplicaRun | None = None
    while end - at >= HEADER_BYTES:
        fields = HEADER.unpack_from(records, at)
        base_offset, length, epoch, magic, crc, attributes, last_offset_delta, _, max_timestamp, producer_id, *rest = (
            fields
        )
        size = length + LOG_OVERHEAD_BYTES
        if magic != MAGIC or base_offset != next_offset or size < HEADER_BYTES or size > end - at:
            break
        if attributes & _UNUSUAL_BITS or max_timestamp < 0 or last_offset_delta < 0:
            break
        if run is None:
            if not epoch_min <= epoch <= epoch_max:
                return None
            run = ReplicaRun(epoch)
        elif epoch != run.leader_epoch or run.size_bytes + size > SIZE_BYTES_MAX:
            break
        if producer_id >= 0 and rest[1] < 0:
            break  # no sequence number
        batch = records[at : at + size]
        if crc32c(batch[CRC_COVERS_FROM:]) != crc:
            break
        if producer_id >= 0:
            run.numbered.append(BatchHeader._make(fields))
        next_offset = base_offset + last_offset_delta + 1
        run.batches.append(batch)
        run.bases.append(base_offset)
        run.ends.append(next_offset)
        run.max_timestamps.append(max_timestamp)
        run.record_count += rest[2]
        run.size_bytes += size
        at += size
    return run if run is not None and run.batches else None
