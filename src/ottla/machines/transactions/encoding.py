"""Encodes the records of `__transaction_state` in Kafka's binary format, so that Kafka's tools can read our logs and we
can read Kafka's.

A key begins with the number of its kind, a value with its version. Values are written in version 1, as Kafka does since
its transaction version 1, and read in versions 0 and 1. Unknown tagged fields are skipped.
"""

from __future__ import annotations

import struct
from itertools import groupby

from ottla.machines.fields import FieldReader, FieldWriter, MalformedError
from ottla.machines.transactions.records import (
    NO_EPOCH,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    WRITTEN_STATES,
    TopicPartition,
    Transaction,
    TransactionRecord,
    TransactionState,
    Unknown,
    Unreadable,
)

KEY_KIND = 0
VERSION = 1
FIRST_FLEXIBLE = 1

PREVIOUS_PRODUCER_ID_TAG = 0
NEXT_PRODUCER_ID_TAG = 1
CLIENT_VERSION_TAG = 2
LAST_PRODUCER_EPOCH_TAG = 10_000
"""A tag of Ottla's own, far from Kafka's numbers. Kafka skips it."""

_LAYOUTS = {
    PREVIOUS_PRODUCER_ID_TAG: ">q",
    NEXT_PRODUCER_ID_TAG: ">q",
    CLIENT_VERSION_TAG: ">h",
    LAST_PRODUCER_EPOCH_TAG: ">h",
}
_DEFAULTS = {
    PREVIOUS_PRODUCER_ID_TAG: NO_PRODUCER_ID,
    NEXT_PRODUCER_ID_TAG: NO_PRODUCER_ID,
    CLIENT_VERSION_TAG: 0,
    LAST_PRODUCER_EPOCH_TAG: NO_EPOCH,
}


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Returns the key and the value of a record."""
    writer = FieldWriter()
    writer.int16(KEY_KIND)
    writer.string(record.transactional_id)
    return writer.done(), None if record.value is None else _value(record.value)


def decode(key: bytes, value: bytes | None) -> TransactionRecord | Unknown | Unreadable:
    """Decodes a record. Never raises: a record that cannot be used is Unknown or Unreadable."""
    try:
        reader = FieldReader(key)
        kind = reader.int16()
        if kind != KEY_KIND:
            return Unknown(kind)
        transactional_id = reader.string()
        reader.end()
        return TransactionRecord(transactional_id, None if value is None else _read_value(value))
    except MalformedError as error:
        return Unreadable(str(error))


def _value(transaction: Transaction) -> bytes:
    writer = FieldWriter(flexible=True)
    writer.int16(VERSION)
    writer.int64(transaction.producer_id)
    writer.int16(transaction.producer_epoch)
    writer.int32(transaction.timeout_ms)
    writer.int8(transaction.state)
    # Kafka writes null if no transaction has started, and an empty list if one has ended.
    topics = None if transaction.state is TransactionState.EMPTY else _by_topic(transaction.partitions)
    writer.array(topics, lambda topic: _write_topic(writer, *topic))
    writer.int64(transaction.updated_ms)
    writer.int64(transaction.started_ms)
    tags = {
        PREVIOUS_PRODUCER_ID_TAG: transaction.previous_producer_id,
        NEXT_PRODUCER_ID_TAG: transaction.next_producer_id,
        CLIENT_VERSION_TAG: transaction.client_version,
        LAST_PRODUCER_EPOCH_TAG: transaction.last_producer_epoch,
    }
    writer.tags({tag: struct.pack(_LAYOUTS[tag], number) for tag, number in tags.items() if number != _DEFAULTS[tag]})
    return writer.done()


def _by_topic(partitions: frozenset[TopicPartition]) -> list[tuple[str, list[int]]]:
    grouped = groupby(sorted(partitions), key=lambda each: each.topic)
    return [(topic, [each.partition for each in found]) for topic, found in grouped]


def _write_topic(writer: FieldWriter, topic: str, partitions: list[int]) -> None:
    writer.string(topic)
    writer.array(partitions, writer.int32)
    writer.tags({})


def _read_value(value: bytes) -> Transaction:
    reader = FieldReader(value)
    version = reader.int16()
    if not 0 <= version <= VERSION:
        raise MalformedError(f"value version {version} is not supported, only 0 to {VERSION}")
    reader.flexible = version >= FIRST_FLEXIBLE
    producer_id, producer_epoch = reader.int64(), reader.int16()
    timeout_ms, state = reader.int32(), _state(reader.int8())
    topics = reader.nullable_array(lambda: _read_topic(reader)) or ()
    updated_ms, started_ms = reader.int64(), reader.int64()
    tags = _read_tags(reader)
    reader.end()
    partitions = NO_PARTITIONS.union(*topics) if state is not TransactionState.EMPTY else NO_PARTITIONS
    return Transaction(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        updated_ms=updated_ms,
        started_ms=started_ms,
        previous_producer_id=tags[PREVIOUS_PRODUCER_ID_TAG],
        next_producer_id=tags[NEXT_PRODUCER_ID_TAG],
        client_version=tags[CLIENT_VERSION_TAG],
        last_producer_epoch=tags[LAST_PRODUCER_EPOCH_TAG],
    )


def _state(number: int) -> TransactionState:
    if number not in WRITTEN_STATES:
        raise MalformedError(f"a transaction in state {number}, which is never written")
    return TransactionState(number)


def _read_topic(reader: FieldReader) -> list[TopicPartition]:
    topic = reader.string()
    partitions = reader.array(reader.int32)
    reader.tags()
    return [TopicPartition(topic, partition) for partition in partitions]


def _read_tags(reader: FieldReader) -> dict[int, int]:
    found = dict(_DEFAULTS)
    for tag, data in reader.tags().items():
        layout = _LAYOUTS.get(tag)
        if layout is None:
            continue
        if len(data) != struct.calcsize(layout):
            raise MalformedError(f"tagged field {tag} has {len(data)} bytes")
        found[tag] = struct.unpack(layout, data)[0]
    return found
