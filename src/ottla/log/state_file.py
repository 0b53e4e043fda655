"""A log's own summary of itself: its leader epochs and producers, as of an offset.

Kept so that a restart does not have to read the log again, and so that a producer's state outlives the segments that
it was learned from (a retention of seconds, SAFETY 21). Everything in it can be learned again from the batches above
`offset`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct

import crc32c

from ottla.log.epochs import LeaderEpochs
from ottla.machines.producers import ProducerBatch, ProducerEntry, ProducerStates

STATE_FILE = "state"
_MAGIC = b"OTLS"
_VERSION = 1
_HEAD = Struct(">4sHIqII")
"""magic, version, CRC of all that follows it, offset, epochs, producers"""
_CRC_FROM = 10
_EPOCH = Struct(">iq")
_PRODUCER = Struct(">qhqB")
_BATCH = Struct(">iiqqq")


@dataclass(slots=True)
class LogState:
    offset: int = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producers: ProducerStates = field(default_factory=ProducerStates)


def encode_state(offset: int, epochs: LeaderEpochs, producers: ProducerStates) -> bytes:
    body = bytearray()
    epoch_entries = list(epochs)
    for epoch_entry in epoch_entries:
        body += _EPOCH.pack(*epoch_entry)
    for producer in producers:
        body += _PRODUCER.pack(producer.producer_id, producer.epoch, producer.last_timestamp_ms, len(producer.batches))
        for batch in producer.batches:
            body += _BATCH.pack(*batch)
    head = bytearray(_HEAD.pack(_MAGIC, _VERSION, 0, offset, len(epoch_entries), len(producers)))
    crc = crc32c.crc32c(bytes(head[_CRC_FROM:]) + body)
    return _HEAD.pack(_MAGIC, _VERSION, crc, offset, len(epoch_entries), len(producers)) + bytes(body)


def decode_state(data: bytes) -> LogState | None:
    """None if the file was not written whole: the log is read instead."""
    if len(data) < _HEAD.size:
        return None
    magic, version, crc, offset, epoch_count, producer_count = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or crc32c.crc32c(data[_CRC_FROM:]) != crc:
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
    return LogState(offset, epochs, ProducerStates(producers))
