"""Batches on the producer's side: one that still takes records, and one that is closed and on its way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.deliveries import Delivery, RecordMetadata, RecordsDelivery
from ottla.records.batch import read_header, set_producer
from ottla.records.bridge import RowEncoder
from ottla.records.envelope import Traits, seal
from ottla.records.record import HeaderRows, decode_batch

NO_SEQUENCE = -1
SEQUENCE_MASK = 0x7FFFFFFF


class Identity(NamedTuple):
    """An idempotent producer's name at the broker."""

    producer_id: int
    epoch: int


@dataclass(slots=True, eq=False)
class Batch:
    """A closed batch: bytes that never change in a retry, except that a restarted numbering signs them again."""

    payload: bytearray
    delivery: Delivery
    buffered_bytes: int
    """What it takes of the producer's buffer until it is acknowledged or given up."""
    deadline_s: float
    identity: Identity | None = None
    sequence: int = NO_SEQUENCE
    in_flight: bool = False
    may_be_written: bool = False
    """A request with it left, and no answer excluded that it is in the log."""

    @property
    def count(self) -> int:
        return self.delivery.count

    def number(self, identity: Identity, sequence: int) -> None:
        self.identity = identity
        self.sequence = sequence
        set_producer(self.payload, identity.producer_id, identity.epoch, sequence)

    def cut_in_two(self) -> tuple[Batch, Batch]:
        """The same records in two batches that together take up the same sequences."""
        records = decode_batch(self.payload)
        header = read_header(self.payload)
        traits = Traits(compression=header.compression, transactional=header.is_transactional)
        at = len(records) // 2
        first_delivery, second_delivery = self.delivery.cut(at)
        payloads = []
        for part in (records[:at], records[at:]):
            encoder = RowEncoder(len(self.payload) * 1024)  # no budget: each half has its rows
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
    """Takes records up to a number of bytes."""

    __slots__ = ("_encoder", "_futures", "_timestamps", "deadline_s", "last_bytes", "ready_at_s", "size_bytes")

    def __init__(self, bytes_max: int, ready_at_s: float, deadline_s: float) -> None:
        self._encoder = RowEncoder(bytes_max)
        self._timestamps: list[int] = []
        self._futures: list[asyncio.Future[RecordMetadata]] = []
        self.size_bytes = 0
        self.last_bytes = 0
        """What the last record took."""
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
        """False if the record does not fit any more."""
        if not self._encoder.append(key, value, headers, timestamp_ms):
            return False
        self._timestamps.append(timestamp_ms)
        self._futures.append(future)
        size_bytes = self._encoder.size_bytes
        self.last_bytes = size_bytes - self.size_bytes
        self.size_bytes = size_bytes
        return True

    def close(self, traits: Traits) -> Batch:
        payload = seal(self._encoder.take(), traits, never_larger=True)
        return Batch(payload, RecordsDelivery(self._futures, self._timestamps), self.size_bytes, self.deadline_s)
