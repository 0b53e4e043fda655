"""The operator of long logs, who also deletes records and changes the segments and the retention of topics."""

from __future__ import annotations

from typing import Any

from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.types import TopicPartition
from tests.simulation.cluster_operator import Operator
from tests.simulation.long_checks import LongChecks
from tests.simulation.long_plan import BOTH, LATEST, PASSING, RECENT, SEGMENT_BYTES, drawn_retention


class LongOperator(Operator):
    def __init__(self, *args: Any, checks: LongChecks) -> None:
        super().__init__(*args)
        self._checks = checks

    async def _act(self, action: str) -> None:
        topic = self._rng.choice(self._plan.topics).name
        match action:
            case "delete records":
                await self._delete_records(topic)
            case "alter segments":
                await self._alter(topic, {"segment.bytes": str(self._rng.choice(SEGMENT_BYTES))})
            case "alter retention":
                names = [each.name for each in self._plan.topics if each.name in (RECENT, BOTH, PASSING)]
                await self._alter(self._rng.choice(names), drawn_retention(self._rng))
            case _:
                await super()._act(action)

    async def _delete_records(self, topic: str) -> None:
        """Up to an offset in the middle of a batch or a segment, as it comes. Compacted topics refuse that."""
        partition = self._rng.randrange(self._clients.partition_counts[topic])
        if topic == LATEST:
            return
        place = TopicPartition(topic, partition)
        async with Consumer(self._servers, request_timeout_ms=2000) as consumer:
            start = (await consumer.beginning_offsets([place]))[place]
            end = (await consumer.end_offsets([place]))[place]
        offset = self._rng.choice((-1, start + (end - start) // 2, start + (end - start) // 2, min(start + 3, end)))
        self._checks.may_delete(topic, partition)
        async with self._admin() as admin:
            found = await admin.delete_records({place: offset})
        self._checks.on_trimmed(topic, partition, found[place])

    async def _alter(self, topic: str, configs: dict[str, str]) -> None:
        async with self._admin() as admin:
            await admin.alter_configs(topic, set_values=configs)
