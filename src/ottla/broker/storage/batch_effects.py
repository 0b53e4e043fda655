"""The effect of a batch on a log's state: the same when it is appended, replayed, or read back from a segment."""

from __future__ import annotations

from typing import Protocol

from ottla.broker.storage.epochs import LeaderEpochs
from ottla.machines.producers import ProducerBatch, ProducerStates
from ottla.machines.transactions.partition_table import Marker, PartitionTransactions
from ottla.protocol.model.writer_ids import WRITER_IDS_FROM
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.control import ControlKind, end_of_transaction, is_writer_fence
from ottla.protocol.records.errors import CorruptRecords


class DerivedState(Protocol):
    """The state that a log derives from its batches."""

    epochs: LeaderEpochs
    producers: ProducerStates
    transactions: PartitionTransactions


def note_batch(header: BatchHeader, batch: memoryview, known: DerivedState) -> None:
    """Updates leader epochs, producers and transactions for one batch."""
    known.epochs.note(header.leader_epoch, header.base_offset)
    if header.producer_id < 0:
        return
    if header.is_control:
        _note_control(header, batch, known)
        return
    if header.base_sequence >= 0:
        note_sequence(header, known)
    else:
        _note_unnumbered(header, known)
    if header.is_transactional:
        known.transactions.record_batch(
            header.producer_id,
            header.producer_epoch,
            header.base_offset,
            header.max_timestamp,
            is_transactional=True,
        )


def note_sequence(header: BatchHeader, known: DerivedState) -> None:
    """Records a batch of an idempotent producer."""
    noted = ProducerBatch(
        header.base_sequence, header.last_sequence, header.base_offset, header.next_offset, header.max_timestamp
    )
    known.producers.record(header.producer_id, header.producer_epoch, noted)


def _note_unnumbered(header: BatchHeader, known: DerivedState) -> None:
    known.producers.record_unnumbered(
        header.producer_id, header.producer_epoch, header.base_offset, header.next_offset, header.max_timestamp
    )


def _note_control(header: BatchHeader, batch: memoryview, known: DerivedState) -> None:
    if header.producer_id >= WRITER_IDS_FROM:
        if _is_fence(header, batch):
            _note_unnumbered(header, known)
        return
    marker = marker_in(header, batch)
    if marker is not None:
        known.transactions.record_marker(marker, header.base_offset, header.max_timestamp)
        _note_unnumbered(header, known)


def _is_fence(header: BatchHeader, batch: memoryview) -> bool:
    try:
        return is_writer_fence(header, batch)
    except CorruptRecords:
        return False


def marker_in(header: BatchHeader, batch: memoryview) -> Marker | None:
    """Returns the transaction marker in a control batch. None if the batch ends no transaction or cannot be read:
    batches are checked before they are appended, and the contents of a log must never stop its recovery."""
    try:
        found = end_of_transaction(header, batch)
    except CorruptRecords:
        return None
    if found is None:
        return None
    is_commit = found.kind is ControlKind.commit
    return Marker(header.producer_id, header.producer_epoch, found.coordinator_epoch, is_commit)
