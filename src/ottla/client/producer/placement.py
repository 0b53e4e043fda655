"""Adds records to the open batches of partitions: chooses the partition, closes full batches and opens new ones."""

from __future__ import annotations

import asyncio

from ottla.client.errors import DeliveryError
from ottla.client.metadata import TopicView
from ottla.client.producer.batches import OpenBatch
from ottla.client.producer.buffer_space import BufferSpace
from ottla.client.producer.deliveries import RecordMetadata
from ottla.client.producer.partitioner import StickyChoice
from ottla.client.producer.sender import Sender
from ottla.client.producer.settings import ProducerSettings
from ottla.protocol.records.batch import HEADER_BYTES
from ottla.protocol.records.record import HeaderRows


class Placement:
    """Adds the records of a producer to batches."""

    def __init__(self, settings: ProducerSettings, sender: Sender, room: BufferSpace, sticky: StickyChoice) -> None:
        self._settings = settings
        self._sender = sender
        self._room = room
        self._sticky = sticky
        self._loop = asyncio.get_running_loop()
        self._bytes_max = max(1, settings.batch_bytes - HEADER_BYTES)

    def place(
        self,
        view: TopicView,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: HeaderRows,
        timestamp_ms: int,
        future: asyncio.Future[RecordMetadata],
    ) -> None:
        """Adds a record. Raises DeliveryError for an unknown partition, TypeError or similar for an invalid record."""
        if partition is None:
            partition = self._settings.partitioner(key, len(view.partitions))
        sticky = partition is None
        if partition is None:
            partition = self._sticky.current(view.name, view.writable)
        elif partition not in view.partitions:
            raise DeliveryError(f"{view.name} has partitions 0 to {len(view.partitions) - 1}, not {partition}")
        queue = self._sender.queue(view.name, partition)
        while queue.open is not None:
            if queue.open.append(key, value, headers, timestamp_ms, future):
                self._room.take(queue.open.last_bytes)
                return
            queue.close_open(self._sender.traits)
            self._sender.wake(queue)
            if sticky:
                self._sticky.move_on(view.name, view.writable)
                queue = self._sender.queue(view.name, self._sticky.current(view.name, view.writable))
        batch = OpenBatch(self._bytes_max, self._ready_at_s(), self.deadline_s())
        batch.append(key, value, headers, timestamp_ms, future)
        self._room.take(batch.last_bytes)
        queue.open = batch
        self._sender.wake(queue)

    def deadline_s(self) -> float:
        """Returns the delivery deadline of a batch that is opened now."""
        return self._loop.time() + self._settings.delivery_timeout_ms / 1000

    def _ready_at_s(self) -> float:
        return self._loop.time() + self._settings.linger_ms / 1000
