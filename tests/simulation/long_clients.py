"""Producers with keys, tombstones and transactions, and readers that jump, look up times and read from followers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Literal

from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.types import ConsumerRecord, TopicPartition
from ottla.client.errors import ClientError, CorruptBatchError, DeliveryError, DeliveryTimedOutError
from ottla.client.producer.deliveries import RecordMetadata
from ottla.client.producer.producer import Producer
from ottla.client.producer.settings import Acks
from ottla.sim.hosts import SimHost
from tests.simulation.cluster_clients import METADATA_AGE_MS, is_unknown_partition, started
from tests.simulation.long_history import ID_HEADER, Fate, LongHistory, LongTransaction, Partition, Sent
from tests.simulation.long_plan import BOTH, KEPT, LATEST
from tests.simulation.violations import Violation

KEYS = 5
TOMBSTONE_SHARE = 0.15
JITTER_MS = 1500
IN_TRANSACTIONS = (KEPT, LATEST, LATEST)
KEYED = (LATEST, BOTH)
Isolation = Literal["read_committed", "read_uncommitted"]


class LongClients:
    def __init__(
        self,
        seed: int,
        servers: str,
        partition_counts: dict[str, int],
        history: LongHistory,
        passed: Callable[[Partition], int],
        may_be_damaged: Callable[[], bool],
        on_acknowledged: Callable[[str, int, int], None],
    ) -> None:
        self._seed = seed
        self._servers = servers
        self._counts = partition_counts
        self.history = history
        self._passed = passed
        self._may_be_damaged = may_be_damaged
        self._on_acknowledged = on_acknowledged
        self.is_over = False

    # -- producers ---------------------------------------------------------------------------------------------

    async def produce(self, host: SimHost, acks: Acks) -> None:
        rng = Random(f"{self._seed}/{host.name}/long")
        new_producer = partial(
            Producer,
            self._servers,
            acks=acks,
            idempotence=acks == "all",
            request_timeout_ms=3000,
            connect_timeout_ms=2000,
            delivery_timeout_ms=rng.choice([100_000, 5000]),
            linger_ms=rng.choice([0, 20]),
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        producer, life = await started(new_producer), 1
        while not self.is_over:
            for _ in range(rng.choice([1, 3, 8, 8])):
                topic = rng.choice(list(self._counts))
                try:
                    self._send(producer, host, rng, topic, f"{host.name}/{life}", acks)
                except DeliveryError as error:
                    if is_unknown_partition(error):
                        continue  # its metadata is older than that partition
                    await _closed(producer)
                    producer, life = await started(new_producer), life + 1
            await asyncio.sleep(rng.choice([0.0, 0.05, 0.1, 0.5]))
        await _closed(producer)

    def _new_record(self, host: SimHost, rng: Random, topic: str, owner: str) -> Sent:
        partition = rng.randrange(self._counts[topic])
        key = f"{owner}/{partition}/{rng.randrange(KEYS)}".encode() if topic in KEYED else None
        is_tombstone = key is not None and rng.random() < TOMBSTONE_SHARE
        value = None if is_tombstone else rng.choice([b"", b"x" * 50, b"y" * 300]) + b"%d" % len(self.history.sent)
        timestamp_ms = int(host.wall_s() * 1000) + rng.randint(-JITTER_MS, JITTER_MS)
        return self.history.new((topic, partition), key, value, timestamp_ms)

    def _send(self, producer: Producer, host: SimHost, rng: Random, topic: str, owner: str, acks: Acks) -> None:
        record = self._new_record(host, rng, topic, owner)
        record.is_weak = acks != "all"
        record.fate = Fate.NOT_WRITTEN  # unless it is buffered
        future = producer.send_nowait(
            topic, record.value, record.key, ((ID_HEADER, record.id),), record.timestamp_ms, record.at[1]
        )
        record.fate = Fate.UNKNOWN
        future.add_done_callback(partial(self._on_settled, record, acks))

    def _on_settled(self, record: Sent, acks: Acks, done: asyncio.Future[RecordMetadata]) -> None:
        error = done.exception()
        if error is None:
            if acks == "all":
                record.fate, record.offset = Fate.WRITTEN, done.result().offset
                self._on_acknowledged(*record.at, record.offset)
            return
        assert isinstance(error, DeliveryError), error
        if not isinstance(error, DeliveryTimedOutError) and not is_unknown_partition(error) and not self._lost_any():
            raise Violation("delivery", f"{record}: {type(error).__name__}: {error}")
        if not error.may_be_written and acks == "all":
            record.fate = Fate.NOT_WRITTEN

    def _lost_any(self) -> bool:
        return any(
            self.history.may_lose(topic, index) for topic, count in self._counts.items() for index in range(count)
        )

    # -- transactions ------------------------------------------------------------------------------------------

    async def transact(self, host: SimHost, name: str) -> None:
        """One transactional id. Transactions stay open across rolls and compactions; some are left behind open."""
        rng = Random(f"{self._seed}/{name}/long")
        new_producer = partial(
            Producer,
            self._servers,
            transactional_id=name,
            transaction_timeout_ms=rng.choice((2000, 20_000)),
            request_timeout_ms=3000,
            connect_timeout_ms=2000,
            delivery_timeout_ms=rng.choice((5000, 20_000)),
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        left: list[Producer] = []
        while not self.is_over:
            producer = await started(new_producer)
            while not self.is_over:
                is_left = rng.random() < 0.05
                if not await self._transaction(producer, host, rng, name, is_left=is_left):
                    await _closed(producer)
                    break
                if is_left:
                    left.append(producer)
                    break
                await asyncio.sleep(rng.choice((0.0, 0.1, 0.5)))
            else:
                await _closed(producer)
        producer = await started(new_producer)  # ends what the one before left open
        await _closed(producer)
        for each in left:
            await _closed(each)

    async def _transaction(self, producer: Producer, host: SimHost, rng: Random, name: str, *, is_left: bool) -> bool:
        """Returns False if the producer has stopped."""
        transaction, opened = LongTransaction(), producer.transaction()
        try:
            await opened.__aenter__()
            for _ in range(rng.choice((1, 2, 4))):
                record = self._new_record(host, rng, rng.choice(IN_TRANSACTIONS), name)
                record.transaction = transaction
                found = await opened.send(
                    record.at[0], record.value, record.key, ((ID_HEADER, record.id),), record.timestamp_ms, record.at[1]
                )
                record.fate, record.offset = Fate.WRITTEN, found.offset
                await asyncio.sleep(rng.choice((0.0, 0.0, 0.3, 1.0, 2.5)))
        except ClientError:
            if rng.random() < 0.5:
                return False
        if is_left:
            return True
        is_commit = rng.random() < 0.5
        if is_commit:
            transaction.fate = Fate.UNKNOWN
        try:
            await (opened.commit() if is_commit else opened.abort())
        except ClientError as error:
            if isinstance(error, DeliveryError) and not error.may_be_written:
                transaction.fate = Fate.NOT_WRITTEN
            return False
        if is_commit:
            transaction.fate = Fate.WRITTEN
        return True

    # -- readers -----------------------------------------------------------------------------------------------

    async def read(self, name: str, isolation: Isolation, rack: str) -> None:
        positions: dict[Partition, int] = {}
        self.history.seen[name] = {}
        consumer = await self._consumer(isolation, rack)
        consumer.subscribe(list(self._counts))
        try:
            while True:
                for record in await self._fetched(consumer, 100):
                    at = record.topic, record.partition
                    self.history.note_read(name, record, positions.get(at), self._passed(at))
                    positions[at] = record.offset + 1
        finally:
            await consumer.close()

    async def _consumer(self, isolation: Isolation, rack: str) -> Consumer:
        return await started(
            partial(
                Consumer,
                self._servers,
                auto_offset_reset="earliest",
                isolation_level=isolation,
                client_rack=rack,
                request_timeout_ms=3000,
                connect_timeout_ms=2000,
                metadata_max_age_ms=METADATA_AGE_MS,
                max_partition_fetch_bytes=Random(f"{self._seed}/{isolation}").choice((2000, 1 << 20)),
            )
        )

    async def _fetched(
        self, consumer: Consumer, count_max: int, timeout_ms: float | None = None
    ) -> list[ConsumerRecord]:
        try:
            return await consumer.fetch_records(count_max, timeout_ms)
        except CorruptBatchError:
            if not self._may_be_damaged():
                raise
            await asyncio.sleep(0.5)
            return []

    async def look_up(self, host: SimHost) -> None:
        """Asks for offsets by time, now and then."""
        rng = Random(f"{self._seed}/times")
        consumer = await self._consumer("read_uncommitted", "")
        while not self.is_over:
            await asyncio.sleep(rng.choice((0.1, 0.5)))
            topic = rng.choice(list(self._counts))
            at = topic, rng.randrange(self._counts[topic])
            asked_ms = int(host.wall_s() * 1000) - rng.randint(-JITTER_MS, 15_000)
            try:
                found = (await consumer.offsets_for_time({at: asked_ms}))[TopicPartition(*at)]
            except ClientError:
                continue
            if found is not None:
                self.history.looked_up.append((at, asked_ms, found.offset, found.timestamp_ms))
        await consumer.close()

    async def read_all(self) -> tuple[dict[Partition, dict[int, Sent]], dict[Partition, int]]:
        """Returns what a reader of committed records finds from the start of each partition on, and these starts."""
        log: dict[Partition, dict[int, Sent]] = {}
        starts: dict[Partition, int] = {}
        for topic, count in self._counts.items():
            for index in range(count):
                log[topic, index], starts[topic, index] = await self._read_partition((topic, index))
        return log, starts

    async def _read_partition(self, at: Partition) -> tuple[dict[int, Sent], int]:
        found: dict[int, Sent] = {}
        async with Consumer(self._servers, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
            place = TopicPartition(*at)
            end = (await consumer.end_offsets([at]))[place]
            consumer.assign([at])
            while await consumer.position(at) < end:
                for record in await self._fetched(consumer, 1000, timeout_ms=200):
                    if record.offset in found:
                        raise Violation("order of reading", f"{at}, {record.offset} came twice")
                    found[record.offset] = self.history.known(record)
            # Afterwards, because retention goes on: what it removed meanwhile need not be among the records.
            start = (await consumer.beginning_offsets([at]))[place]
        return found, start

    async def offset_for(self, at: Partition, asked_ms: int) -> tuple[int, int] | None:
        async with Consumer(self._servers) as consumer:
            found = (await consumer.offsets_for_time({at: asked_ms}))[TopicPartition(*at)]
        return None if found is None else (found.offset, found.timestamp_ms)


async def _closed(producer: Producer) -> None:
    """Closes a producer. The outcomes of its records are already recorded, so errors do not matter."""
    try:
        await producer.close()
    except ClientError:
        return
