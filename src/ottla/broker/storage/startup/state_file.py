"""A summary of a log as of an offset: its leader epochs, producers and transactions.

It saves a restart from reading the log again. It also lets the state of a producer outlive the segments from which it
was learned, which matters with a retention of seconds (safety: duplicates). Everything in it can be rebuilt from the
batches above `offset`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from struct import Struct

import crc32c

from ottla.broker.storage.epochs import LeaderEpochs
from ottla.machines.producers import BATCHES_KEPT, NO_SEQUENCE, ProducerBatch, ProducerEntry, ProducerStates
from ottla.machines.transactions.aborted_index import AbortedIndex
from ottla.machines.transactions.partition_snapshot import decode_snapshot, encode_snapshot
from ottla.machines.transactions.partition_table import PartitionTransactions

STATE_FILE = "state"
_MAGIC = b"OTLS"
_VERSION = 2
_VERSION_WITHOUT_TRANSACTIONS = 1
_HEAD = Struct(">4sHIqII")
"""magic, version, CRC of all that follows it, offset, epochs, producers"""
_CRC_FROM = 10
_EPOCH = Struct(">iq")
_PRODUCER = Struct(">qhqB")
_BATCH = Struct(">iiqqq")
_LENGTH = Struct(">I")
"""Length of the encoded transaction table. The index of aborted transactions follows it, up to the end."""


@dataclass(slots=True)
class LogState:
    """The state of a log as of `offset`."""

    offset: int = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producers: ProducerStates = field(default_factory=ProducerStates)
    transactions: PartitionTransactions = field(default_factory=PartitionTransactions)


def encode_state(
    offset: int, epochs: LeaderEpochs, producers: ProducerStates, transactions: PartitionTransactions | None = None
) -> bytes:
    """Encodes the state as of an offset. Everything above the offset is left out, and is rebuilt from the log."""
    body = bytearray()
    epoch_entries = [entry for entry in epochs if entry[1] < offset]
    for epoch_entry in epoch_entries:
        body += _EPOCH.pack(*epoch_entry)
    kept = [entry for producer in producers if (entry := as_of(offset, producer)) is not None]
    for producer in kept:
        body += _PRODUCER.pack(producer.producer_id, producer.epoch, producer.last_timestamp_ms, len(producer.batches))
        for batch in producer.batches:
            body += _BATCH.pack(*batch)
    body += _encode_transactions(offset, transactions or PartitionTransactions())
    head = bytearray(_HEAD.pack(_MAGIC, _VERSION, 0, offset, len(epoch_entries), len(kept)))
    crc = crc32c.crc32c(bytes(head[_CRC_FROM:]) + body)
    return _HEAD.pack(_MAGIC, _VERSION, crc, offset, len(epoch_entries), len(kept)) + bytes(body)


def _encode_transactions(offset: int, transactions: PartitionTransactions) -> bytes:
    table = encode_snapshot(transactions, offset)
    assert table is not None, "the caller checks that the state can be encoded"
    return _LENGTH.pack(len(table)) + table + transactions.aborted.encode(0, offset)


def can_tell_as_of(offset: int, producers: ProducerStates, transactions: PartitionTransactions | None = None) -> bool:
    """Reports whether the state as of the offset is still known. It is not if a producer has written so many batches or
    taken so many epochs since that only its activity above the offset is remembered."""
    if transactions is not None and not transactions.knows(offset):
        return False
    return all(_can_tell(offset, producer) for producer in producers)


def _can_tell(offset: int, producer: ProducerEntry) -> bool:
    if not producer.batches or producer.batches[0].base_offset < offset:
        return True
    if producer.is_whole:
        return producer.previous is None or _can_tell(offset, producer.previous)
    return len(producer.batches) < BATCHES_KEPT and producer.epoch == 0


def as_of(offset: int, producer: ProducerEntry) -> ProducerEntry | None:
    """Returns the producer's entry as of the offset. None if all of its remembered batches lie above: then the log
    itself has all there is to know about the producer."""
    if not producer.batches or producer.batches[-1].end_offset <= offset:
        return producer
    batches = [batch for batch in producer.batches if batch.end_offset <= offset]
    if batches:
        return replace(producer, batches=batches)
    return as_of(offset, producer.previous) if producer.previous is not None else None


def trim_state(state: LogState, offset: int) -> LogState:
    """Trims a state to an offset. A state that was written but never checkpointed is ahead of the log that a restart
    finds. Its knowledge of everything below the offset still holds, and may be all that is left of a producer whose
    segments have expired."""
    entries = [entry for producer in state.producers if (entry := as_of(offset, producer)) is not None]
    state.epochs.truncate_from(offset)
    return LogState(offset, state.epochs, ProducerStates(entries), trim_transactions(state.transactions, offset))


def merged_producers(learned: ProducerStates, older: Iterable[ProducerEntry]) -> ProducerStates:
    """Merges producers learned from the log with older entries, which are kept for producers whose batches are gone. A
    producer of which only a transaction marker remains in the log has an epoch there, but no sequence."""
    merged = {entry.producer_id: entry for entry in learned}
    for entry in older:
        known = merged.get(entry.producer_id)
        if known is None or (known.batches[-1].last_sequence == NO_SEQUENCE and known.epoch == entry.epoch):
            merged[entry.producer_id] = entry
    return ProducerStates(merged.values())


def trim_transactions(transactions: PartitionTransactions, offset: int) -> PartitionTransactions:
    """Returns the transactions as of an offset: those of producers whose last change lies below it."""
    same = [
        (producer_id, known)
        for producer_id, known in transactions
        if (known.first_offset if known.is_open else known.marker_offset) < offset
    ]
    ended = [each for each in transactions.ended if each.marker_offset < offset]
    trimmed = PartitionTransactions(same, ended, offset)
    trimmed.aborted = AbortedIndex(each for each in transactions.aborted if each.last_offset < offset)
    return trimmed


def decode_state(data: bytes) -> LogState | None:
    """Decodes a state file. None if it was not written completely; the log is read instead."""
    if len(data) < _HEAD.size:
        return None
    magic, version, crc, offset, epoch_count, producer_count = _HEAD.unpack_from(data)
    is_known = version in (_VERSION, _VERSION_WITHOUT_TRANSACTIONS)
    if magic != _MAGIC or not is_known or crc32c.crc32c(data[_CRC_FROM:]) != crc:
        return None
    at = _HEAD.size
    epochs = LeaderEpochs(_EPOCH.unpack_from(data, at + i * _EPOCH.size) for i in range(epoch_count))
    at += epoch_count * _EPOCH.size
    producers: list[ProducerEntry] = []
    for _ in range(producer_count):
        producer_id, epoch, timestamp_ms, batch_count = _PRODUCER.unpack_from(data, at)
        at += _PRODUCER.size
        batches = [ProducerBatch(*_BATCH.unpack_from(data, at + i * _BATCH.size)) for i in range(batch_count)]
        at += batch_count * _BATCH.size
        producers.append(ProducerEntry(producer_id, epoch, timestamp_ms, batches))
    if version == _VERSION_WITHOUT_TRANSACTIONS:
        return LogState(offset, epochs, ProducerStates(producers), PartitionTransactions(from_offset=offset))
    transactions = _decode_transactions(data, at)
    return LogState(offset, epochs, ProducerStates(producers), transactions) if transactions is not None else None


def _decode_transactions(data: bytes, at: int) -> PartitionTransactions | None:
    (length,) = _LENGTH.unpack_from(data, at)
    table_at = at + _LENGTH.size
    found = decode_snapshot(data[table_at : table_at + length])
    aborted = AbortedIndex.decode(data[table_at + length :])
    if found is None or aborted is None:
        return None
    found[1].aborted = aborted
    return found[1]
