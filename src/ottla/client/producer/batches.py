"""Batches of the producer: open ones, which still accept records, and closed ones, which are sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.producer.deliveries import Delivery, RecordMetadata, RecordsDelivery
from ottla.protocol.records.batch import read_header, set_producer
from ottla.protocol.records.bridge import RowEncoder
from ottla.protocol.records.envelope import Traits, seal
from ottla.protocol.records.record import HeaderRows, decode_batch

NO_SEQUENCE = -1
SEQUENCE_MASK = 0x7FFFFFFF


class Identity(NamedTuple):
    """The producer id and epoch of an idempotent producer."""

    producer_id: int
    epoch: int


@dataclass(slots=True, eq=False)
class Batch:
    """A closed batch. Retries send the same bytes, except that a new producer id or sequence is written into them."""

    payload: bytearray
    delivery: Delivery
    buffered_bytes: int
    """Bytes that the batch occupies in the producer's buffer until it is acknowledged or given up."""
    deadline_s: float
    identity: Identity | None = None
    sequence: int = NO_SEQUENCE
    in_flight: bool = False
    may_be_written: bool = False
    """Whether a request with this batch was sent and no reply has ruled out that it is in the log."""

    @property
    def count(self) -> int:
        """The number of records."""
        return self.delivery.count

    def number(self, identity: Identity, sequence: int) -> None:
        """Assigns the producer id, epoch and sequence, and writes them into the batch."""
        self.identity = identity
        self.sequence = sequence
        set_producer(self.payload, identity.producer_id, identity.epoch, sequence)

    def cut_in_two(self) -> tuple[Batch, Batch]:
        """Splits the records into two batches that together use the same sequences."""
        records = decode_batch(self.payload)
        header = read_header(self.payload)
        traits = Traits(compression=header.compression, transactional=header.is_transactional)
        at = len(records) // 2
        first_delivery, second_delivery = self.delivery.cut(at)
        payloads = []
        for part in (records[:at], records[at:]):
            # Effectively unlimited, so that each half takes all its rows
            encoder = RowEncoder(len(self.payload) * 1024)
            for record in part:
                encoder.append(record.key, record.value, record.headers, record.timestamp_ms)
            payloads.append(seal(encoder.take(), traits))
        share = self.buffered_bytes * at // len(records)
        first = Batch(payloads[0], first_delivery, share, self.deadline_s)
        second = Batch(payloads[1], second_delivery, self.buffered_bytes - share, self.deadline_s)
        if self.identity is not None:
            first.number(self.identity, self.sequence)
            second.number(self.identity, (self.sequence + at) & SEQUENCE_MASK)
        return first, second


class OpenBatch:
    """Accepts records up to a number of bytes."""

    __slots__ = ("_encoder", "_futures", "_timestamps", "deadline_s", "last_bytes", "ready_at_s", "size_bytes")

    def __init__(self, bytes_max: int, ready_at_s: float, deadline_s: float) -> None:
        self._encoder = RowEncoder(bytes_max)
        self._timestamps: list[int] = []
        self._futures: list[asyncio.Future[RecordMetadata]] = []
        self.size_bytes = 0
        self.last_bytes = 0
        """The size of the last record."""
        self.ready_at_s = ready_at_s
        self.deadline_s = deadline_s

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: HeaderRows,
        timestamp_ms: int,
        future: asyncio.Future[RecordMetadata],
    ) -> bool:
        """Adds a record. Returns False if it does not fit."""
        if not self._encoder.append(key, value, headers, timestamp_ms):
            return False
        self._timestamps.append(timestamp_ms)
        self._futures.append(future)
        size_bytes = self._encoder.size_bytes
        self.last_bytes = size_bytes - self.size_bytes
        self.size_bytes = size_bytes
        return True

    def close(self, traits: Traits) -> Batch:
        """Encodes the records as a closed batch."""
        payload = seal(self._encoder.take(), traits, never_larger=True)
        return Batch(payload, RecordsDelivery(self._futures, self._timestamps), self.size_bytes, self.deadline_s)
