"""A broker on a simulated disk, catalog and clock. Time passes only while the test waits for something.

The event loop is asyncio's own. The broker schedules everything later on the simulated clock, which `until` and
`settle` advance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import TypeVar
from uuid import UUID

from ottla.broker.broker import Broker
from ottla.broker.context import BrokerContext
from ottla.broker.partition.batch_validation import Appended
from ottla.broker.partition.partition import Partition
from ottla.broker.standalone.admin import StandaloneAdmin
from ottla.broker.standalone.metadata import StandaloneMetadata
from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.log_resources import LogResources, MemoryBudget
from ottla.broker.storage.tail_cache import TailCache
from ottla.broker.topics.log_store import LogStore
from ottla.broker.topics.topics import Topic
from ottla.protocol.model.broker_config import parse_broker_config
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.record import decode_batch
from ottla.sim.catalog import SimCatalog
from ottla.sim.clock import SimClock
from ottla.sim.disk import Keep, SimDisk
from tests.support.sim_logs import JOURNAL_ID, batch_of, split

T = TypeVar("T")
LIMITS = JournalLimits(ring_bytes_max=512 * 1024, file_bytes_max=64 * 1024, group_bytes_max=32 * 1024)
TURNS_MAX = 100_000


class BrokerBench:
    def __init__(self, *, seed: int = 3, **properties: str) -> None:
        self.seed = seed
        self.properties = {name.replace("_", "."): value for name, value in properties.items()}
        self.clock = SimClock()
        self.disk = SimDisk(self.clock, seed=seed)
        self.catalog = SimCatalog()
        self.reports: list[str] = []
        self._ids = self._new_ids()
        self.broker: Broker
        self.metadata: StandaloneMetadata
        self.start()

    def _new_ids(self) -> Iterator[UUID]:
        number = 1000
        while True:
            number += 1
            yield UUID(int=number)

    # -- lifecycle -------------------------------------------------------------------------------------------

    def start(self) -> None:
        config = parse_broker_config(self.properties)
        assert not isinstance(config, Refused), config
        shared = LogResources(
            self.disk,
            self.clock,
            TailCache(config.tail_cache_bytes, config.unwritten_max_bytes),
            MemoryBudget(config.memory_max_bytes),
            report=self.reports.append,
        )
        store = LogStore(shared, "/data", JOURNAL_ID, LIMITS)
        context = BrokerContext(config, shared, store, "/data", new_id=lambda: next(self._ids))
        self.metadata = StandaloneMetadata(context, self.catalog)
        self.broker = Broker(context, self.metadata)
        self.metadata.recover()
        self.broker.start()

    @property
    def admin(self) -> StandaloneAdmin:
        return self.metadata.admin

    def crash(self, keep: Keep = "none") -> None:
        self.broker.housekeeping.stop()
        self.seed += 1
        survivor = self.disk.crash(self.seed, keep=keep)
        self.clock = SimClock(self.clock.now_ms())
        self.disk = SimDisk(self.clock, seed=survivor.seed, capacity_bytes=survivor.capacity_bytes)
        self.disk.state.tree = survivor.state.tree

    def restart(self, keep: Keep = "none", **properties: str) -> None:
        self.crash(keep)
        self.properties.update({name.replace("_", "."): value for name, value in properties.items()})
        self.start()

    async def stop(self) -> None:
        await self.until(self.broker.stop())

    # -- time ------------------------------------------------------------------------------------------------

    async def until(self, awaitable: Awaitable[T]) -> T:
        """Advances time in steps of a millisecond until the awaitable is done."""
        task = asyncio.ensure_future(awaitable)
        for _ in range(TURNS_MAX):
            await self._turn()
            if task.done():
                return task.result()
            self.clock.advance(1)
        task.cancel()
        raise TimeoutError("it does not end")

    async def settle(self, ms: float = 100.0) -> None:
        until_ms = self.clock.monotonic_ms() + ms
        while self.clock.monotonic_ms() < until_ms:
            self.clock.advance(min(50.0, until_ms - self.clock.monotonic_ms()))
            await self._turn()

    async def _turn(self) -> None:
        for _ in range(5):
            self.clock.run_until_idle()
            await asyncio.sleep(0)

    # -- topics and records ----------------------------------------------------------------------------------

    async def create(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        if "durability" in settings:
            settings["ottla.durability"] = settings.pop("durability")
        topic = await self.until(self.admin.create_topic(name, partitions, settings))
        assert not isinstance(topic, Refused), topic
        return topic

    def partition(self, name: str, index: int = 0) -> Partition:
        topic = self.broker.topics.get(name)
        assert topic is not None, f"there is no topic {name}"
        found = topic.partition(index)
        assert found is not None
        return found

    def append(
        self,
        name: str,
        index: int = 0,
        *,
        value: bytes = b"value",
        records: int = 1,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> Appended | Refused:
        data = bytearray(
            batch_of(
                [value] * records,
                timestamps_ms=[self.clock.now_ms()],
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=producer[2],
            )
        )
        return self.partition(name, index).append(memoryview(data), self.clock.now_ms())

    async def produce(self, name: str, index: int = 0, **options: object) -> int | ErrorCode:
        """Appends one batch and waits for its acknowledgement. Returns the base offset or the error."""
        outcome = self.append(name, index, **options)  # type: ignore[arg-type]  # the options of append
        if isinstance(outcome, Refused):
            return outcome.error
        partition = self.partition(name, index)
        settled: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if outcome.end_offset > partition.high_watermark:
            partition.when_acknowledged(outcome.end_offset, settled.set_result)
        else:
            settled.set_result(ErrorCode.none)
        error = await self.until(settled)
        return outcome.base_offset if error is ErrorCode.none else error

    async def values(self, name: str, index: int = 0) -> list[bytes]:
        """Returns the values of all records that a reader gets."""
        partition = self.partition(name, index)
        offset, found = partition.log.start_offset, list[bytes]()
        while offset < partition.high_watermark:
            part = partition.read(offset, 1 << 20)
            if isinstance(part, ColdRead):
                part = await self.until(partition.read_cold(part))
            assert isinstance(part, Slice), part
            assert part.next_offset > offset
            for batch in split(part):
                found += [r.value for r in decode_batch(batch) if r.offset >= offset and r.value is not None]
            offset = part.next_offset
        return found

    def log_directories(self) -> list[str]:
        return self.disk.files.list_dir("/data/logs")
