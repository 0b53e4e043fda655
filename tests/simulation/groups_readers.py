"""A group of Ottla's own consumers on simulated hosts.

processed       each acknowledged record is processed by each group at least once
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import ClientError
from ottla.client.groups.settings import GroupProtocol
from ottla.sim.hosts import SimHost
from tests.simulation.cluster_clients import METADATA_AGE_MS, Place, started

TOPIC = "orders"


class ReaderGroup:
    def __init__(self, name: str, protocol: GroupProtocol, servers: str, seed: int, count: int) -> None:
        self.name = name
        self.is_quiet = False
        self.is_over = False
        self.processed: dict[Place, bytes] = {}
        self.lives = 0
        self.refusals: dict[str, int] = {}
        """Failed commits, by reason."""
        self._rngs = [Random(f"{seed}/{name}/{number}") for number in range(count)]
        self._new_consumer = partial(
            Consumer,
            servers,
            group_id=name,
            group_protocol=protocol,
            auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1000,
            max_poll_interval_ms=20_000,
            request_timeout_ms=3000,
            connect_timeout_ms=2000,
            metadata_max_age_ms=METADATA_AGE_MS,
        )

    def start(self, hosts: list[SimHost]) -> None:
        for number, rng in enumerate(self._rngs):
            hosts[number % len(hosts)].spawn(self._live(rng))

    async def _live(self, rng: Random) -> None:
        await asyncio.sleep(rng.random() * 2)
        while not self.is_over:
            consumer = await started(self._new_consumer)
            self.lives += 1
            consumer.subscribe([TOPIC])
            try:
                await self._process(consumer, rng)
            finally:
                await consumer.close()
            await asyncio.sleep(rng.random())

    async def _process(self, consumer: Consumer, rng: Random) -> None:
        """Processes records, then commits, so that committed records are always processed."""
        rounds = rng.choice((10, 30, 1000))
        while not self.is_over and (rounds > 0 or self.is_quiet):
            rounds -= 1
            try:
                for record in await consumer.fetch_records(20, timeout_ms=500):
                    assert record.value is not None
                    value = record.value[: record.value.index(b".") + 1]
                    self.processed[record.topic, record.partition, record.offset] = value
                if rng.random() < 0.5:
                    await consumer.commit()
            except ClientError as error:
                name = type(error).__name__
                self.refusals[name] = self.refusals.get(name, 0) + 1
                await asyncio.sleep(0.1)
