"""Change logs for tests: random upserts, deletes and re-inserts, and a plain model that replays them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from ottla.client import Admin, Producer

START_MS = 1_794_800_000_000


@dataclass(frozen=True)
class Change:
    partition: int
    offset: int
    timestamp_ms: int
    key: str
    value: str | None


@dataclass
class Model:
    """Every change, in the order of its partition."""

    partitions: int
    changes: list[list[Change]] = field(default_factory=list)
    clock_ms: int = START_MS

    def __post_init__(self) -> None:
        self.changes = [[] for _ in range(self.partitions)]

    def grow(self, chance: random.Random, count: int, *, keys: int = 40) -> list[Change]:
        """A quarter are deletes; timestamps sometimes go backwards."""
        new = []
        for _ in range(count):
            key = f"k{chance.randrange(keys)}"
            partition = int(key[1:]) % self.partitions
            self.clock_ms += chance.choice([0, 1, 5, 20, -10])
            value = None if chance.random() < 0.25 else json.dumps({"id": key, "n": chance.randrange(1_000_000)})
            offset = len(self.changes[partition])
            change = Change(partition, offset, self.clock_ms, key, value)
            self.changes[partition].append(change)
            new.append(change)
        return new

    def ends(self) -> list[int]:
        return [len(each) for each in self.changes]

    def cut_at_time(self, time_ms: int) -> list[int]:
        """Returns everything before the first record that is not older."""
        return [
            next((each.offset for each in changes if each.timestamp_ms >= time_ms), len(changes))
            for changes in self.changes
        ]

    def table(self, cut: list[int]) -> dict[str, str]:
        rows: dict[str, str] = {}
        for changes, end in zip(self.changes, cut, strict=True):
            for each in changes[:end]:
                rows.pop(each.key, None)
                if each.value is not None:
                    rows[each.key] = each.value
        return rows


def produce(bootstrap: str, topic: str, changes: Iterable[Change]) -> None:
    async def work() -> None:
        async with Producer(bootstrap) as producer:
            for each in changes:
                value = None if each.value is None else each.value.encode()
                await producer.enqueue(
                    topic, value, each.key.encode(), timestamp_ms=each.timestamp_ms, partition=each.partition
                )
            await producer.flush()

    asyncio.run(work())


def produce_raw(bootstrap: str, topic: str, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    async def work() -> None:
        async with Producer(bootstrap) as producer:
            for key, value in records:
                await producer.enqueue(topic, value, key, partition=0)
            await producer.flush()

    asyncio.run(work())


def delete_before(bootstrap: str, topic: str, offsets: list[int]) -> None:
    """Deletes records as retention does."""

    async def work() -> None:
        async with Admin(bootstrap) as admin:
            await admin.delete_records({(topic, partition): offset for partition, offset in enumerate(offsets)})

    asyncio.run(work())
