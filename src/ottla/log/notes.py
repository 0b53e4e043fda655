"""What a batch changes besides bytes: the same when it is appended, replayed, or read back from a segment."""

from __future__ import annotations

from ottla.log.epochs import LeaderEpochs
from ottla.machines.producers import ProducerBatch, ProducerStates
from ottla.records.batch import BatchHeader


def note_batch(header: BatchHeader, epochs: LeaderEpochs, producers: ProducerStates) -> None:
    epochs.note(header.leader_epoch, header.base_offset)
    if header.producer_id >= 0:
        batch = ProducerBatch(
            header.base_sequence, header.last_sequence, header.base_offset, header.next_offset, header.max_timestamp
        )
        producers.record(header.producer_id, header.producer_epoch, batch)
