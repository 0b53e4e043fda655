"""Producers and consumers of a simulated cluster, and the history that they record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TypeVar

from ottla.broker.cluster.roles import OFFSETS_OF_AN_EPOCH
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.types import ConsumerRecord
from ottla.client.errors import ClientError, CorruptBatchError, DeliveryError, DeliveryTimedOutError
from ottla.client.producer.deliveries import RecordMetadata
from ottla.client.producer.producer import Producer
from ottla.client.producer.settings import Acks
from tests.simulation.violations import Violation

Client = TypeVar("Client", Producer, Consumer)
Place = tuple[str, int, int]
"""Topic, partition and offset."""
METADATA_AGE_MS = 2000


@dataclass
class History:
    """The outcomes that clients observed, by record value."""

    acknowledged: dict[bytes, Place] = field(default_factory=dict)
    """Records acknowledged under acks=all."""
    weakly_acknowledged: dict[bytes, Place] = field(default_factory=dict)
    """Records acknowledged under acks=1, and those sent with acks=0, whose offset is unknown."""
    unknown: set[bytes] = field(default_factory=set)
    """Records that the producer gave up; they may or may not be written."""
    refused: set[bytes] = field(default_factory=set)
    """Records that the producer gave up and that are certainly not written."""
    seen: dict[str, dict[Place, bytes]] = field(default_factory=dict)
    """Records that each consumer read."""

    @property
    def known(self) -> set[bytes]:
        """Returns all records that may be in a log."""
        return self.acknowledged.keys() | self.weakly_acknowledged.keys() | self.unknown


class Clients:
    """The clients of a run. `has_losses` tells whether a partition had losses that its class permits, `may_be_damaged`
    whether bits flipped anywhere."""

    def __init__(
        self,
        seed: int,
        servers: str,
        topics: dict[str, int],
        has_losses: Callable[[str, int], bool],
        may_be_damaged: Callable[[], bool],
        on_acknowledged: Callable[[str, int, int], None],
    ) -> None:
        self._seed = seed
        self._servers = servers
        self.partition_counts = topics
        """Partition counts by topic, as far as clients may know them."""
        self._has_losses = has_losses
        self._may_be_damaged = may_be_damaged
        self._on_acknowledged = on_acknowledged
        self.history = History()
        self.is_over = False

    # -- producers ---------------------------------------------------------------------------------------------

    async def produce(self, name: str, acks: Acks) -> None:
        rng = Random(f"{self._seed}/{name}")
        new_producer = partial(
            Producer,
            self._servers,
            acks=acks,
            idempotence=acks == "all",
            request_timeout_ms=3000,
            connect_timeout_ms=2000,
            delivery_timeout_ms=rng.choice([100_000, 100_000, 5000]),
            linger_ms=rng.choice([0, 5]),
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        producer, life, number = await started(new_producer), 1, 0
        while not self.is_over:
            for _ in range(rng.choice([1, 1, 3, 10])):
                number += 1
                value = b"%s/%d number %d." % (name.encode(), life, number)
                try:
                    self._send(producer, rng, value, acks)
                except DeliveryError as error:
                    if is_unknown_partition(error):
                        continue  # its metadata does not have that partition yet
                    # The order is not defined from here on: a request of this producer may still be in flight.
                    await _closed(producer)
                    producer, life = await started(new_producer), life + 1
            await asyncio.sleep(rng.choice([0.0, 0.05, 0.5, 1.5]))
        await _closed(producer)

    def _send(self, producer: Producer, rng: Random, value: bytes, acks: Acks) -> None:
        padded = value + b"x" * rng.choice([0, 0, 0, 500, 5000])
        topic = rng.choice(list(self.partition_counts))
        partition = rng.randrange(self.partition_counts[topic])
        sent = producer.send_nowait(topic, padded, partition=partition)
        sent.add_done_callback(partial(self._on_settled, (topic, partition), value, acks))

    def _on_settled(self, at: tuple[str, int], value: bytes, acks: Acks, sent: asyncio.Future[RecordMetadata]) -> None:
        history = self.history
        error = sent.exception()
        if error is None:
            place = (*at, sent.result().offset)
            (history.acknowledged if acks == "all" else history.weakly_acknowledged)[value] = place
            if acks == "all":
                self._on_acknowledged(*place)
            return
        assert isinstance(error, DeliveryError), error
        is_expected = isinstance(error, DeliveryTimedOutError) or is_unknown_partition(error)
        if not is_expected and not self._lost_anything():
            raise Violation("delivery", f"{value!r} to {at[0]}-{at[1]}: {type(error).__name__}: {error}")
        (history.unknown if error.may_be_written or acks != "all" else history.refused).add(value)

    def _lost_anything(self) -> bool:
        """Returns whether the producer found a gap in one partition, after which it gives up all pending records."""
        counts = self.partition_counts.items()
        return any(self._has_losses(topic, index) for topic, count in counts for index in range(count))

    # -- consumers ---------------------------------------------------------------------------------------------

    async def consume(self, name: str) -> None:
        seen = self.history.seen[name] = {}
        consumer = await started(
            partial(
                Consumer,
                self._servers,
                auto_offset_reset="earliest",
                request_timeout_ms=3000,
                connect_timeout_ms=2000,
                metadata_max_age_ms=METADATA_AGE_MS,
            )
        )
        consumer.subscribe(list(self.partition_counts))
        try:
            while True:
                for record in await self._fetched(consumer, 100):
                    self._note(name, seen, record)
        finally:
            await consumer.close()

    async def _fetched(self, consumer: Consumer, count_max: int) -> list[ConsumerRecord]:
        """Fetches records. A leader that finds damage reports an error and resigns."""
        try:
            return await consumer.fetch_records(count_max)
        except CorruptBatchError:
            if not self._may_be_damaged():
                raise
            await asyncio.sleep(0.5)
            return []

    def _note(self, name: str, seen: dict[Place, bytes], record: ConsumerRecord) -> None:
        place, value = _noted(record)
        topic, partition, offset = place
        if not self._has_losses(topic, partition):
            if place in seen:
                raise Violation("order of reading", f"{name} got offset {offset} of {topic}-{partition} twice")
            is_first = offset % OFFSETS_OF_AN_EPOCH == 0  # the first offset of an empty `memory` log
            if not is_first and (topic, partition, offset - 1) not in seen:
                raise Violation("order of reading", f"{name} got offset {offset} of {topic}-{partition} too early")
        seen[place] = value

    async def read_all(self) -> dict[Place, bytes]:
        log: dict[Place, bytes] = {}
        async with Consumer(self._servers, auto_offset_reset="earliest") as consumer:
            partitions = [(topic, index) for topic, count in self.partition_counts.items() for index in range(count)]
            starts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
            consumer.assign(partitions)
            wanted = sum(ends.values()) - sum(starts.values())
            while len(log) < wanted:
                for record in await self._fetched(consumer, 1000):
                    place, value = _noted(record)
                    if place in log:
                        raise Violation("order of reading", f"{place} came twice")
                    log[place] = value
        return log


def is_unknown_partition(error: DeliveryError) -> bool:
    return "has partitions" in str(error)


async def started(new_client: Callable[[], Client]) -> Client:
    """Starts a client, also while all brokers are down. A client that failed to start is replaced by a new one."""
    while True:
        client = new_client()
        try:
            await client.start()
        except ClientError:
            await asyncio.sleep(0.5)
        else:
            return client


async def _closed(producer: Producer) -> None:
    """Closes the client and ignores undelivered records: the outcome of each record is recorded already."""
    try:
        await producer.close()
    except DeliveryError:
        return


def _noted(record: ConsumerRecord) -> tuple[Place, bytes]:
    assert record.value is not None
    return (record.topic, record.partition, record.offset), record.value[: record.value.index(b".") + 1]
