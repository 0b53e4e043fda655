"""A snapshot of a partition's transactions as of an offset, so that a restart need not read the log from its beginning.

The index of aborted transactions is not included: it grows with the log and is stored beside it (`aborted_index`).
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

from ottla.machines.transactions.partition_table import PartitionTransactions, TransactionalProducer, UncommittedEnd

_MAGIC = b"OTLT"
_VERSION = 1
_HEAD = Struct(">4sHIqII")
"""Magic number, version, CRC of everything after the CRC, offset, number of producers, number of ended transactions."""
_CRC_FROM = 10
_PRODUCER = Struct(">qhqiqq")
_ENDED = Struct(">qq")


def encode_snapshot(table: PartitionTransactions, offset: int) -> bytes | None:
    """Encodes the table as of this offset. Returns None if that state is no longer known."""
    past = table.as_of(offset)
    if past is None:
        return None
    body = b"".join(_PRODUCER.pack(producer_id, *known) for producer_id, known in sorted(past))
    body += b"".join(_ENDED.pack(*each) for each in past.ended)
    head = _HEAD.pack(_MAGIC, _VERSION, 0, offset, len(past), len(past.ended))
    crc = crc32(head[_CRC_FROM:] + body)
    return head[: _CRC_FROM - 4] + crc.to_bytes(4, "big") + head[_CRC_FROM:] + body


def decode_snapshot(data: bytes) -> tuple[int, PartitionTransactions] | None:
    """Returns the table and the offset from which to read the log. Returns None if the snapshot was not written
    completely."""
    if len(data) < _HEAD.size:
        return None
    magic, version, crc, offset, producer_count, ended_count = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or crc32(data[_CRC_FROM:]) != crc:
        return None
    at = _HEAD.size
    if len(data) != at + producer_count * _PRODUCER.size + ended_count * _ENDED.size:
        return None
    producers = []
    for _ in range(producer_count):
        producer_id, *fields = _PRODUCER.unpack_from(data, at)
        producers.append((producer_id, TransactionalProducer(*fields)))
        at += _PRODUCER.size
    ended = [UncommittedEnd(*_ENDED.unpack_from(data, at + place * _ENDED.size)) for place in range(ended_count)]
    return offset, PartitionTransactions(producers, ended, offset)
